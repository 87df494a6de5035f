"""Hooks: user objects, such as an experiment tracker, whose methods are called during training."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping


class Hook:
    """The base class of hooks, whose methods do nothing; a hook overrides those that it needs.

    In a run of several processes, only the first one calls its hooks. An exception in a hook ends the training. An
    exception in `ended` is raised after all hooks have been called; if the training itself has failed, it is only
    logged.
    """

    optional: bool = False
    """True for trackers: an exception does not end the training. It is a warning, and the hook is called again only at
    the end."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receives the metrics of a step, as in log.jsonl, after the next step has been dispatched."""

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        """Receives the metrics of a validation; `better` is True for the best so far."""

    def saved(self, step: int, directory: pathlib.Path) -> None:
        """Receives the folder of a checkpoint once it is completely written.

        The next save has begun by then, and removes the folder if `train.keep_last` is 1. Keep 2 to copy folders.
        """

    def ended(self, step: int, reason: str) -> None:
        """Receives the last step and the reason for the end: `training.Result.reason`, or the text of an error."""
