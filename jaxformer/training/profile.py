"""Profiler traces of some training steps, for XProf and Perfetto."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import jax

from jaxformer.errors import ConfigError
from jaxformer.multihost import processes


class Profile:
    """A trace of the steps `first` to `last`, which `before` starts and stops.

    Every process of a run has one, so that all of them read their metrics before the same steps; the first one writes
    the trace.

    Args:
      directory: the folder of the trace. XProf (``xprof --logdir DIR``) and TensorBoard's plugin open it; Perfetto
        (https://ui.perfetto.dev) opens its file ``perfetto_trace.json.gz``.
    """

    def __init__(self, directory: str | os.PathLike[str], first: int, last: int):
        self._directory, self._first, self._last = os.fspath(directory), first, last
        self._running = False

    def due(self, number: int) -> bool:
        """Returns True if the trace starts or stops before step `number`; it continues if training goes back."""
        return number == (self._last + 1 if self._running else self._first)

    def before(self, number: int) -> None:
        """Starts or stops the trace if it is due; earlier steps must have ended."""
        if self.due(number) and self._running:
            self.close()
        elif self.due(number):
            self._running = True
            if processes.is_first():
                jax.profiler.start_trace(self._directory, create_perfetto_trace=True)

    def close(self) -> None:
        """Stops the trace if it still runs, and writes it."""
        if self._running:
            self._running = False
            if processes.is_first():
                jax.profiler.stop_trace()


def open_profile(
    directory: str | os.PathLike[str], text: str, *, start: int, steps: int, say: Callable[[str], None]
) -> Profile | None:
    """Returns the trace of `profiled_steps`; if a resumed run has already done them, reports that and returns None."""
    try:
        return Profile(directory, *profiled_steps(text, start=start, steps=steps))
    except ConfigError as error:
        say(f"no trace is written: {error}")
        return None


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
    first, last = (int(match[1]), int(match[2])) if match[1] else (start + 11, start + 10 + int(match[2]))
    if not start < first <= last:
        raise ConfigError(f"the steps to profile must be after step {start} and in order, got {text}")
    if first > steps:
        raise ConfigError(f"the steps to profile must be in the training, which ends at step {steps}, got {text}")
    return first, last
