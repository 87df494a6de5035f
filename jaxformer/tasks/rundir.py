"""The run directory: the files of a training run, which are sufficient to use, resume and repeat it.

::

    run/
      config.json        the task and its resolved configuration
      provenance.json    versions, platform, hashes of the data; for each start, its date, command, commit and devices
      tokenizer.model    the vocabulary (tokenizer.json for characters or pretrained models)
      classes.json       for a classifier: the names of the classes
      checkpoints/       parameters, optimizer, position in the data
      average/           after `jaxformer average`: the averaged parameters
      pretrained/        after `jaxformer convert` or `jaxformer trim`, instead of checkpoints: the parameters
      attention.json     with an attention of the user's own: a record of its file, which is never run
      init.json          with `init_from`: the parameters taken from the other run, and the reasons for the rest
      log.jsonl          every training step and validation, once
      time.json          the time spent on each part of the work, for each start
      profile/           with --profile: a trace of some steps
      tensorboard/       with `train.tensorboard`: event files
      tracker.json       with `train.log_to`: the tracker's identifier of the run, and its folder
      curves.png         the loss curves, drawn at the end of each start
      scores-*.json      after `jaxformer evaluate`: the scores; examples-*.jsonl has those of each example; settings of
                         the search that are not those in config.json are in the name
      .lock              during training: the process that trains
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping

from jaxformer import inspection
from jaxformer.config import difference, lasting, to_data
from jaxformer.errors import ConfigError
from jaxformer.files import TEMPORARY, JsonObject, remove_abandoned, write_bytes, write_text
from jaxformer.tasks.config import TaskConfig
from jaxformer.training.hooks import Hook
from jaxformer.training.logging import read_log
from jaxformer.training.phase_timer import FINISHED

FORMAT = 2
"""The format of config.json: the names of settings. A run of another format is read by the commit that made it."""

LOCK = ".lock"
"""The name of the file that training locks; see `run_lock`."""

GENERATION = "generation_config.json"
"""The settings of the search in the folder that a run was converted from; the runs that start from it have a copy."""

PRETRAINED = "pretrained"
"""The name of the folder that `jaxformer convert` writes."""

PACKAGES = (
    "jaxformer jax jaxlib flax optax orbax-checkpoint numpy sentencepiece sacrebleu sacremoses tokenizers safetensors"
).split()


def holds_run(out: pathlib.Path) -> bool:
    """Returns True if `out` holds a run that can be resumed; writes nothing.

    A run that ended before its first step, for example because its settings do not fit its data, cannot be resumed.

    Raises:
      ConfigError: `out` holds files that are not a run, or a converted model, or an average without its checkpoints; it
        cannot be read, or has a name that is not UTF-8.
    """
    if any("\ud800" <= character <= "\udfff" for character in str(out.absolute())):
        raise ConfigError(f"{str(out.absolute())!a} is not UTF-8, as the names of checkpoints must be")
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(out / "config.json")  # since Python 3.14, `exists` is False where it raised an OSError
        if is_pretrained(out):
            raise ConfigError(
                f"{out} holds {kind_of_pretrained(out)}; train in another directory, with --init-from {out}"
            )
        if (out / "config.json").exists():
            if any((out / "checkpoints").glob("[0-9]*")):
                return True
            if not {"task", "config"} <= read_json(out / "config.json").keys():  # as in a Hugging Face folder
                raise ConfigError(f"{out} holds the config.json of another program; choose another directory")
            if (out / "average").is_dir():
                raise ConfigError(f"{out} holds averaged parameters but no checkpoints; choose another directory")
            # Training creates the log before the first step, and the folder of checkpoints before the first checkpoint.
            log = out / "log.jsonl"
            return log.exists() and log.stat().st_size > 0
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file; a run is a directory")
        # A killed process may leave behind what a run creates before its config.json.
        if out.exists() and any(x.name != LOCK and not x.name.startswith(TEMPORARY) for x in out.iterdir()):
            raise ConfigError(f"{out} is not empty and holds no config.json; choose another directory")
    except OSError as error:
        raise ConfigError(f"cannot look into {out}: {error.strerror}; choose another directory") from error
    return False


def is_pretrained(run: pathlib.Path) -> bool:
    """Returns True if `jaxformer convert` or `jaxformer trim` made this run."""
    return (run / PRETRAINED).is_dir()


def kind_of_pretrained(run: pathlib.Path) -> str:
    """Returns the kind of a run with one set of parameters, for messages: "a converted model" or "a trimmed run"."""
    return "a trimmed run" if "trimmed" in read_optional_json(run / "provenance.json") else "a converted model"


def encoder_family(run: pathlib.Path) -> str:
    """Returns the ``model_type`` of an encoder without a head that `jaxformer convert` made a run; otherwise empty."""
    return str(read_optional_json(run / "provenance.json").get("encoder") or "")


def check_trained(run: pathlib.Path) -> None:
    """Checks that a run was made by training, so that it has data."""
    if is_pretrained(run):
        what = kind_of_pretrained(run)
        raise ConfigError(f"{run} is {what}, which has no data of its own; `jaxformer score` scores a text")


def check_config(out: pathlib.Path, saved: TaskConfig, config: TaskConfig) -> None:
    """Checks that a run to be resumed has this configuration, except for settings marked `PLACE` or `LATER`."""
    before, now = lasting(saved), lasting(config)
    if type(saved) is not type(config) or _ordered(before) != _ordered(now):
        text = difference(before, now) if before != now else "data.corpora has another order"
        raise ConfigError(f"{out} holds a run of another configuration: {text}")


def _ordered(data: object) -> object:
    """Returns plain data in which tables are lists, so that those of another order differ."""
    return [(name, _ordered(value)) for name, value in data.items()] if isinstance(data, dict) else data


def check_data(out: pathlib.Path, hashes: Mapping[str, str]) -> None:
    """Checks, by hashes, that a run to be resumed or scored was trained on this data.

    Args:
      hashes: those of the parts to check, by the names of the parts.
    """
    known = read_optional_json(out / "provenance.json").get("data", hashes)
    saved = {part: known[part] for part in hashes if part in known}
    if saved != hashes:
        raise ConfigError(f"{out} holds a run on other data, by its hash: {difference(saved, dict(hashes))}")


def check_vocabulary(out: pathlib.Path, fingerprint: str) -> None:
    """Checks, by its hash, that a run still has the vocabulary with which its parameters were trained."""
    saved = read_optional_json(out / "provenance.json").get("tokenizer", fingerprint)
    if saved != fingerprint:
        raise ConfigError(f"{out} has another vocabulary than in training, by its hash: was {saved}, now {fingerprint}")


def run_fingerprint(out: pathlib.Path) -> str:
    """Returns the hash that names a run in its checkpoints; empty for a run of an earlier version, or without the file.

    It is computed once, at the first start, because later starts may have other settings that change no completed step.
    """
    return str(read_optional_json(out / "provenance.json").get("run") or "")


def claim(out: pathlib.Path, task: str, config: TaskConfig, vocabulary_files: Iterable[str]) -> None:
    """Makes `out` the run of this configuration by writing config.json; removes the files of an earlier attempt."""
    for name in vocabulary_files:
        (out / name).unlink(missing_ok=True)
    remove_abandoned(out, age=0)
    write_config(out, task, config)


def copy_files(source: pathlib.Path, out: pathlib.Path, names: Iterable[str]) -> None:
    """Copies those of the files that the folder `source` has, such as a vocabulary."""
    for name in names:
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)


def write_config(out: pathlib.Path, task: str, config: TaskConfig) -> None:
    """Writes config.json."""
    saved = {"format": FORMAT, "task": task, "config": to_data(config)}
    text = json.dumps(saved, indent=2, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in text):  # from a file name that is not UTF-8
        text = json.dumps(saved, indent=2)
    write_text(out / "config.json", f"{text}\n")


def release(out: pathlib.Path, vocabulary_files: Iterable[str], earlier: bytes | None = None) -> None:
    """Removes what `claim`, the preparation of data and a first step that failed left in `out`, unless one succeeded.

    `run_lock` removes the folder itself.

    Args:
      earlier: the contents of config.json before `claim`, perhaps the user's own, which it has again.
    """
    if holds_run(out):
        return
    prepared = "provenance.json", "init.json", "tracker.json", "attention.json", GENERATION
    for name in (*prepared, "log.jsonl", "time.json", *vocabulary_files):
        (out / name).unlink(missing_ok=True)
    if earlier is None:
        (out / "config.json").unlink(missing_ok=True)
    else:
        with contextlib.suppress(OSError):  # such as a full disk, which may be the original error
            write_bytes(out / "config.json", earlier)
    for name in ("tensorboard", "profile"):
        shutil.rmtree(out / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # missing, or not empty
        (out / "checkpoints").rmdir()


def read_json(path: pathlib.Path) -> JsonObject:
    """Reads a JSON object.

    Raises:
      ConfigError: the file cannot be read, does not hold a JSON object, or repeats a name in one.
    """
    try:
        if path.is_fifo():  # it would block
            raise ValueError("it is a named pipe")
        data = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_table)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"cannot read {path}: it does not hold a JSON object")
    return data


def read_optional_json(path: pathlib.Path) -> JsonObject:
    """Reads a JSON object, or returns an empty one if there is no such file; see `read_json`."""
    return read_json(path) if path.exists() else {}


def _table(pairs: list[tuple[str, object]]) -> JsonObject:
    """Returns a JSON object; rejects a repeated name, for which Python would keep the last value."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return table


def write_provenance(out: pathlib.Path, *, start: Mapping[str, object] | None = None, **facts: object) -> None:
    """Saves the facts that are needed to repeat the run: versions, platform, and `facts`.

    Args:
      start: facts of this start, such as its devices; they are added to those of earlier starts.
    """
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    path = out / "provenance.json"
    starts = read_optional_json(path).get("starts", [])
    now = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.orig_argv,
        **_code(),
        **(start or {}),
    }
    about = {"python": platform.python_version(), "platform": platform.platform(), "versions": versions, **facts}
    about["starts"] = [*starts, now]
    write_text(path, json.dumps(about, indent=2) + "\n")


class Curves(Hook):
    """Draws the losses of a run into ``run/curves.png`` under the run's name when a training ends without an error.

    If that fails, says so. A symbolic link is replaced, not followed: in someone else's run it may point to any of this
    user's files.
    """

    def __init__(self, run: pathlib.Path, say: Callable[[str], None]):
        self._run, self._say = run, say

    def ended(self, step: int, reason: str) -> None:
        if reason not in FINISHED:
            return
        path, plots = self._run / "curves.png", inspection.plots  # imported here: reading a run needs no matplotlib
        try:
            if path.is_symlink():
                path.unlink()
            name = read_json(self._run / "config.json")["config"]["name"]
            plots.save(plots.loss_curves(read_log(self._run / "log.jsonl"), title=name), path)
        except OSError as error:
            self._say(f"warning: {path} is not saved: {error.strerror or error}")


def _code() -> dict[str, object]:
    """Returns the git commit and state of this package's source, or else of the working directory's repository.

    The state is None (unknown) if determining it would run a filter program that the repository configures.
    """
    for folder in (pathlib.Path(__file__).parent, pathlib.Path.cwd()):
        # A package that is installed inside another project's folder is not part of that repository.
        commit = _git(folder, "rev-parse", "HEAD")
        if commit and (folder == pathlib.Path.cwd() or _git(folder, "ls-files", pathlib.Path(__file__).name)):
            filters = _git(folder, "config", "--show-scope", "--get-regexp", r"^filter\..*\.(clean|process)$")
            changes = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
            runs_own = any(line.startswith(("local", "worktree")) for line in filters.splitlines())
            dirty = None if runs_own else bool(_git(folder, *changes))
            return {"commit": commit, "dirty": dirty, "repository": _git(folder, "rev-parse", "--show-toplevel")}
    return {"commit": None, "dirty": None, "repository": None}


def _git(folder: pathlib.Path, *words: str) -> str:
    """Returns the output of a git command; empty without git, or outside a repository.

    Programs that a repository, which may be someone else's, configures are not run.
    """
    git = shutil.which("git")
    if git is None:
        return ""
    safe = "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"
    env = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [git, *safe, "-C", folder, *words]
        done = subprocess.run(command, capture_output=True, timeout=10, check=True, env=env)  # noqa: S603
        return os.fsdecode(done.stdout).strip()  # a path need not be UTF-8
    return ""
