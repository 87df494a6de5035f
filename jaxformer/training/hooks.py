"""Hooks: objects whose methods are called during training.

Logs, progress, traces, trackers, pictures, time accounts and the watchdog are hooks, and so are a user's own.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from jaxformer.training.phase_timer import PhaseTimer

Part = Literal["starting", "compiling", "waiting for data", "stepping", "validating", "saving"]
"""A part of the work of a process."""


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a training, as its hooks receive it."""

    step: int
    """The number of completed steps."""
    steps: int
    """The last step of the training."""
    timer: PhaseTimer
    settle: Callable[[], None]
    """Waits until all dispatched steps have ended, and passes their metrics to all hooks."""


@dataclasses.dataclass(frozen=True)
class Means:
    """Means over the steps since the last report: losses of short and long sequences differ a lot."""

    loss: float
    """The mean over the tokens of steps that were not skipped; NaN without any."""
    tokens_per_second: float
    flops_per_second: float
    """0 if the number of operations is unknown."""


class Hook:
    """The base class of hooks, whose methods do nothing; a hook overrides those that it needs.

    In a run of several processes, only the first one calls the hooks given to `jaxformer.train`. An exception in a hook
    ends the training. An exception in `ended` is raised after all hooks have been called; if the training itself has
    failed, it is only logged.
    """

    optional: bool = False
    """True for trackers: an exception does not end the training. It is a warning, and the hook is called again only at
    the end."""

    def started(self, start: Start) -> None:
        """Receives the start, before the first step; a place to open what `ended` closes."""

    def begins(self, step: int, part: Part) -> None:
        """Receives the next action: "waiting for data" or "stepping" for a step, another part after it.

        Before "validating" and "saving", the metrics of all steps have been received.
        """

    def reported(self, step: int, metrics: Mapping[str, float], means: Means) -> None:
        """Receives means every `train.log_every` steps, and after the last step, just before its `step`."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receives the metrics of a step, as in log.jsonl, after the next step has been dispatched."""

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        """Receives the metrics of a validation; `better` is True for the best so far."""

    def saved(self, step: int, directory: pathlib.Path) -> None:
        """Receives the folder of a checkpoint once it is completely written.

        The next save has begun by then, and removes the folder if `train.keep_last` is 1. Keep 2 to copy folders.
        """

    def went_back(self, step: int, problem: str) -> None:
        """Receives the step of the checkpoint to which training went back, and why: later steps come again."""

    def say(self, text: str) -> None:
        """Receives a line for people; that Ctrl-C was seen comes from another thread."""

    def ended(self, step: int, reason: str) -> None:
        """Receives the last step and the reason for the end: `training.Result.reason`, or the text of an error.

        It is called even if a hook could not start.
        """
