"""The run directory: what a training run leaves behind, and what makes it reproducible.

::

    run/
      config.json        the task and its resolved configuration
      provenance.json    versions, platform, hash of the data
      tokenizer.model    the subword tokenizer
      checkpoints/       parameters, optimizer, position in the data
      log.jsonl          every training step and validation, once
      curves.png         the loss curves
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
from typing import Any

from jaxformer.config import ConfigError, essence, fingerprint, from_data, to_data

PACKAGES = ("jaxformer", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece", "sacrebleu")


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all: under a temporary name, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def check_run(out: pathlib.Path, config: Any) -> bool:
    """Whether `out` holds a run of this configuration, to be resumed; writes nothing.

    One that ended before its first step, for its settings did not fit its data, say, holds nothing to be resumed.

    Raises:
      ConfigError: `out` holds a run of another configuration, or files that are no run.
    """
    if (out / "config.json").exists():
        if not (out / "log.jsonl").exists() and not any((out / "checkpoints").glob("[0-9]*")):
            return False  # an empty folder of checkpoints may be made by who looks for one
        _, old = read_config(out)
        if fingerprint(old) != fingerprint(config):
            difference = _difference(essence(old), essence(config))
            raise ConfigError(f"{out} holds a run of another configuration: {difference}")
        return True
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty and holds no config.json; choose another directory")
    return False


def check_data(out: pathlib.Path, data: dict[str, str]) -> None:
    """That a run to be resumed or scored was trained on this data, by hashes of its parts.

    Raises:
      ConfigError: on other data; what it had learned, and the order of its batches, would mean nothing.  Or
        provenance.json cannot be read.
    """
    path = out / "provenance.json"
    before = _read_json(path).get("data", data) if path.exists() else data
    if before != data:
        raise ConfigError(f"{out} holds a run on other data, by its hash: {_difference(before, data)}")


def claim_run(out: pathlib.Path, task: str, config: Any) -> None:
    """Makes `out` the run of this configuration, by its config.json; a tokenizer left by an earlier attempt goes."""
    (out / "tokenizer.model").unlink(missing_ok=True)
    saved = {"task": task, "config": to_data(config)}
    write_text(out / "config.json", json.dumps(saved, indent=2, ensure_ascii=False) + "\n")


def read_config(run: pathlib.Path) -> tuple[str, Any]:
    """The task's name and the configuration of a run.

    Raises:
      ConfigError: `run` is no run, or its config.json does not fit this version.
    """
    path = run / "config.json"
    if not path.exists():
        raise ConfigError(f"{run} is not a run: it has no config.json")
    return read_config_file(path)


def read_config_file(path: pathlib.Path) -> tuple[str, Any]:
    """The task's name and the configuration in a saved config.json."""
    from jaxformer.tasks import TASKS

    saved = _read_json(path)
    task = saved.get("task")
    if not isinstance(task, str) or task not in TASKS:
        raise ConfigError(f"{path} is of task {task!r}; this version knows {sorted(TASKS)}")
    return task, from_data(TASKS[task], saved.get("config"))


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"cannot read {path}: it holds no JSON object")
    return found


def write_provenance(out: pathlib.Path, **facts: Any) -> None:
    """Saves what a reader needs to know to run this again: versions, platform, and the given facts."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    about = {"python": platform.python_version(), "platform": platform.platform(), "versions": versions, **facts}
    write_text(out / "provenance.json", json.dumps(about, indent=2) + "\n")


def _difference(old: Any, new: Any, path: str = "") -> str:
    """The first place in which two configurations differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                return _difference(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    return f"{path} was {old!r}, now {new!r}"
