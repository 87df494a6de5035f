"""Functions that commands share: compilation cache, processes of a run, console."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pathlib
import platform
import signal
import sys

import jax
from rich.console import Console

import jaxformer
from jaxformer import signals
from jaxformer.caches import user_cache
from jaxformer.cli.output import shown
from jaxformer.config import flat, to_data
from jaxformer.multihost import cluster, processes
from jaxformer.training.hooks import Hook
from jaxformer.training.progress import StderrConsole, print_line

EXIT_CODES = {"terminated": 85, "time": 85, "interrupted": 130}
"""The exit codes of a training run that was stopped and saved, by reason; the same command resumes it."""


class KeepCode(Hook):
    """A hook that keeps the exit code of completed training: the exit code of SIGTERM would request a restart."""

    def ended(self, step: int, reason: str) -> None:
        """Lets the process ignore SIGTERM, because it is about to end."""
        signals.EXITS.pop(signal.SIGTERM, None)


class _OneLine(logging.Formatter):
    """A log format that escapes control characters in the names of files and runs."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return shown(super().formatMessage(record))


def start(*, compile_cache: bool = True) -> None:
    """Configures this process: compiled programs are kept in the user's cache, unless JAX is configured otherwise."""
    logging.basicConfig()
    for handler in logging.root.handlers:  # importing Orbax installs one
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(_OneLine("%(levelname)s: %(message)s"))
    # Orbax logs every directory that it reads, and an error that it raises with hundreds of lines of traceback.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    processes.find_devices()
    if compile_cache and jax.config.jax_compilation_cache_dir is None:
        programs = user_cache("programs")
        if programs is None:
            return
        jax.config.update("jax_compilation_cache_dir", str(programs))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def join(config: object, out: pathlib.Path, *, devices: int | None = None) -> None:
    """Connects the processes of one run, reports them, and checks that they agree on settings, code and versions."""
    this_process = cluster.initialize(devices=devices)
    print(this_process, file=sys.stderr, flush=True)
    code = hashlib.sha256()
    for path in sorted(pathlib.Path(jaxformer.__file__).parent.rglob("*.py")):
        code.update(path.read_bytes())
    flags = {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    versions = {"python": platform.python_version(), "jax": jax.__version__, "code": code.hexdigest(), **flags}
    settings = {name: json.dumps(value) for name, value in flat(to_data(config)).items()}
    cluster.check_equal({**settings, **versions, "--out": str(out)})


def say(text: str) -> None:
    """Prints a line on the console."""
    print_line(console(), text)


def console() -> Console:
    """Returns a console on standard error, so that results can be piped; it is quiet except in the first process."""
    return StderrConsole(quiet=not processes.is_first())
