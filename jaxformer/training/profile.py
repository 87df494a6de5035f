"""Profiler traces of some training steps, for XProf and Perfetto."""

from __future__ import annotations

import logging
import os
import re

import jax

from jaxformer.errors import ConfigError
from jaxformer.multihost import processes
from jaxformer.training.hooks import Hook, Part, Start

logger = logging.getLogger(__name__)


class Profile(Hook):
    """A trace of some steps, as `profiled_steps` reads them; it continues if training goes back.

    Every process of a run has one, so that all of them read their metrics before the same steps; the first one writes
    the trace.

    Args:
      directory: the folder of the trace. XProf (``xprof --logdir DIR``) and TensorBoard's plugin open it; Perfetto
        (https://ui.perfetto.dev) opens its file ``perfetto_trace.json.gz``.
      steps: ``FIRST:LAST``, or a number of steps.
    """

    def __init__(self, directory: str | os.PathLike[str], steps: str):
        self._directory, self._steps, self._running = os.fspath(directory), steps, False

    def started(self, start: Start) -> None:
        """Finds the steps; if resumed training has already done them, a warning says so."""
        self._settle, self._first, self._last = start.settle, 0, 0
        try:
            self._first, self._last = profiled_steps(self._steps, start=start.step, steps=start.steps)
        except ConfigError as error:
            if not start.step:
                raise
            if processes.is_first():
                logger.warning("no trace is written: %s", error)

    def begins(self, step: int, part: Part) -> None:
        """Starts or stops the trace before the batch of a step, after earlier steps have ended."""
        due = self._last + 1 if self._running else self._first
        if part != "waiting for data" or step != due:
            return
        self._settle()
        if self._running:
            self.ended(step, "")
        else:
            self._running = True
            if processes.is_first():
                jax.profiler.start_trace(self._directory, create_perfetto_trace=True)

    def ended(self, step: int, reason: str) -> None:
        """Stops the trace if it still runs, and writes it."""
        if self._running:
            self._running = False
            if processes.is_first():
                jax.profiler.stop_trace()


def profiled_steps(text: str, *, start: int, steps: int) -> tuple[int, int]:
    """Returns the first and last step of ``FIRST:LAST``, or of a number of steps that follow the tenth of this start.

    Raises:
      ConfigError: the text is neither, or the first step is already done, or it is after the last of the training's
        `steps`.

    >>> profiled_steps("100:104", start=0, steps=300), profiled_steps("5", start=200, steps=300)
    ((100, 104), (211, 215))
    """
    match = re.fullmatch(r"(?:([1-9]\d{0,8}):)?([1-9]\d{0,8})", text)
    if not match:
        raise ConfigError(f"the steps to profile must be a number, or FIRST:LAST such as 100:104, got {text!r}")
    first, last = start + 11, start + 10 + int(match[2])
    if match[1]:
        first, last = int(match[1]), int(match[2])
    if not start < first <= last:
        raise ConfigError(f"the steps to profile must be after step {start} and in order, got {text}")
    if first > steps:
        raise ConfigError(f"the steps to profile must be in the training, which ends at step {steps}, got {text}")
    return first, last
