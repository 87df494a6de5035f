"""What commands that compute have in common: the compilation cache, the console, the task, the pictures."""

from __future__ import annotations

import importlib
import logging
import os
import pathlib
from typing import Any

import jax
from rich.console import Console

EXIT_CODES = {"terminated": 85, "time": 85, "interrupted": 130}
"""Of a training that was stopped and saved, by the reason; the same command goes on with it."""


def start(*, compile_cache: bool = True) -> None:
    """Settings of this process: compiled programs are kept for the next one, in the user's own cache directory."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax tells of every directory it looks into
    if compile_cache and jax.config.jax_compilation_cache_dir is None:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "jaxformer" / "programs"
        base.mkdir(parents=True, exist_ok=True, mode=0o700)  # whoever can write there can run code here
        jax.config.update("jax_compilation_cache_dir", str(base))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def console() -> Console:
    """Standard error, so that a command's results can be piped."""
    return Console(stderr=True)


def task(name: str) -> Any:
    """The module of a task."""
    return importlib.import_module(f"jaxformer.tasks.{name}")


def draw_curves(run: pathlib.Path) -> pathlib.Path:
    """``run/curves.png``: the losses of a run."""
    from jaxformer.inspection import plots
    from jaxformer.training.logging import read_log

    return plots.loss_curves(read_log(run / "log.jsonl"), run / "curves.png", title=run.name)
