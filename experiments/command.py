"""The arguments that all experiments take, and the trainings that have records."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax

import jaxformer
from experiments.program import guarded, raise_signals
from jaxformer.cli import runtime
from jaxformer.config import changed, fingerprint
from jaxformer.errors import ConfigError, JaxformerError
from jaxformer.files import check_writable, use_utf8, write_text
from jaxformer.hardware import processor_name, use_large_pages
from jaxformer.tasks import sweep
from jaxformer.tasks.config import TaskConfig
from jaxformer.training.phase_timer import COMPLETE, read_starts

SAVING = 20.0
"""Seconds before the end of a call at which a training stops."""


class Stopped(JaxformerError):
    """The time was up; the same command resumes there."""

    exit_code = 85


def parser(name: str, description: str | None, *, out: str, data: str = "") -> argparse.ArgumentParser:
    """Returns a parser with the options ``--out``, explained by `out`, and ``--smoke``.

    Args:
      name: the experiment, for ``python -m experiments.<name>``.
      description: the docstring of its command, shown as it is written.
      data: what the folder of data holds; with it, there are the options ``--data-dir`` and ``--minutes``.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", type=pathlib.Path, required=True, help=out)
    made.add_argument("--smoke", action="store_true", help="tiny sizes, in seconds; the results mean nothing")
    if data:
        made.add_argument("--data-dir", type=pathlib.Path, help=f"the folder of {data}; default: JAXFORMER_DATA")
        made.add_argument("--minutes", type=float, default=0.0, help="the time limit of this call in minutes; 0: none")
    return made


def count(text: str) -> int:
    """Reads a number of at least 1, such as that of ``--seeds``.

    Raises:
      argparse.ArgumentTypeError: the text is anything else.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number of at least 1, got {text}")
    return int(text)


def script(run: Callable[[], int]) -> NoReturn:
    """Runs the `main` of an experiment as a program: with large pages, and compiled programs are kept; then exits."""
    use_utf8()
    use_large_pages()
    runtime.start()
    raise_signals()
    sys.exit(run())


def exit_code(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    """Runs an experiment and returns its exit code, after a check that the folder of results can be written.

    The exit codes are those of ``jaxformer``; any SIGTERM is 85. An error or a signal is one line on standard error.
    """

    def checked() -> None:
        check_writable(options.out / "report.md")
        run(options)

    return guarded(checked, stopped="stopped; the same command resumes here", terminated=Stopped.exit_code)


def end_of_call(minutes: float) -> float:
    """Returns the time on the monotonic clock at which a call ends after these minutes; never for 0.

    Raises:
      ConfigError: `minutes` is negative, or not a number.
    """
    if not minutes >= 0:
        raise ConfigError(f"--minutes must be at least 0, got {minutes:g}")
    return time.monotonic() + 60 * minutes if minutes else float("inf")


def data_directory(given: pathlib.Path | None, holds: str) -> pathlib.Path:
    """Returns the folder that ``--data-dir`` names; without it, that in the environment's ``JAXFORMER_DATA``.

    Args:
      holds: what the folder must have, for the error.

    Raises:
      ConfigError: neither names a folder.
    """
    found = given or os.environ.get("JAXFORMER_DATA")
    if not found:
        raise ConfigError(f"--data-dir, or JAXFORMER_DATA, must name the folder of {holds}")
    return pathlib.Path(found).expanduser()


def train(config: TaskConfig, run: pathlib.Path, end: float, *, hooks: Sequence[Any] = ()) -> float:
    """Trains a run, or resumes it, until the call ends; returns the seconds that it took in all calls.

    Raises:
      Stopped: the training did not reach its end.
      KeyboardInterrupt: Ctrl-C has stopped it, after it was saved.
    """
    left = end - time.monotonic() - SAVING
    if left < SAVING:
        raise Stopped(f"the time is up before {run.name}; the same command resumes there")
    minutes = left / 60 if left < float("inf") else 0.0
    result = jaxformer.train(changed(config, {"train": {"minutes": minutes}}), run, hooks=hooks)
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    if result.reason not in COMPLETE:
        step = int(result.state.step)
        raise Stopped(f"{run.name} was stopped ({result.reason}) at step {step:,}; the same command resumes there")
    return sum(sum(start["seconds"].values()) for start in read_starts(run / "time.json"))


def train_all(trials: Sequence[sweep.Trial], **options: Any) -> None:
    """Trains what is not complete of a sweep, one after another; for `options`, see `sweep.train`.

    Raises:
      Stopped: the time was up, or a training failed.
      KeyboardInterrupt: Ctrl-C has stopped a training, after it was saved.
    """
    reason, failures = sweep.train(trials, say=lambda text: print(text, flush=True), **options)
    if reason == "interrupted":
        raise KeyboardInterrupt
    if reason != "done" or failures:
        raise Stopped(f"stopped: {failures or reason}; the same command resumes there")


def record(path: pathlib.Path, config: Any, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the record in a file; if it is missing, `make` computes it.

    Args:
      config: a dataclass with the settings of the record.

    Raises:
      ConfigError: the record is of other settings than `config`.
    """
    settings = fingerprint(config)
    if not path.exists():
        write_results(path, {"settings": settings, **make()})
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("settings") != settings:
        raise ConfigError(f"{path} must be a result of these settings, got others; choose another --out")
    return found


def trained(
    config: TaskConfig, name: str, out: pathlib.Path, end: float, measure: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the record of a run in a folder, which is trained and measured if it has none; see `train`, `record`."""

    def make() -> Mapping[str, Any]:
        print(f"\n{name}", flush=True)
        seconds = train(config, out / name, end)
        return {**measure(), **facts(), "seconds": seconds}

    return record(out / "records" / f"{name}.json", config, make)


def write_once(path: pathlib.Path, text: str) -> None:
    """Writes a file of data; one that holds this text is left as it is.

    Raises:
      ConfigError: it holds another, as of the smoke version, and there may be trainings on it.
    """
    if not path.exists():
        write_text(path, text)
    elif path.read_bytes() != text.encode():
        raise ConfigError(f"{path} holds other data; choose another --out")


def write_results(path: pathlib.Path, results: Mapping[str, Any]) -> None:
    """Writes results as JSON."""
    write_text(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def publish(out: pathlib.Path, text: str) -> None:
    """Writes the report into a folder of results, and prints it."""
    write_text(out / "report.md", text)
    print(text)


def facts() -> dict[str, Any]:
    """Returns the date, command, commit (with a ``+`` if tracked files differ), processor and versions."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "-uno") else ""),
        "processor": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores",
        "version": jaxformer.__version__,
        "jax": jax.__version__,
    }


def _git(*words: str) -> str:
    """Returns the output of a git command in this folder; empty without git, or outside a repository."""
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(pathlib.Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
