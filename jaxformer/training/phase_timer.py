"""The time that a run spends on each part of its work, over all restarts."""

from __future__ import annotations

import json
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Required, TypedDict, TypeGuard, get_args

from jaxformer.files import write_text
from jaxformer.training.hooks import Hook, Part, Start

PARTS: tuple[Part, ...] = get_args(Part)

ENDS = {
    "patience": "stopped by --train.patience",
    "time": "stopped by --train.minutes",
    "terminated": "stopped by SIGTERM",
    "interrupted": "stopped by Ctrl-C",
}
"""Descriptions of a training that ended before the last step, by `Result.reason`."""

COMPLETE = ("done", "patience")
"""The reasons after which a training is complete; after any other reason it can be resumed."""

FINISHED = ("done", *ENDS)
"""The reasons for which a training ends without an error."""


def described(reason: str, step: int) -> str:
    """Returns the reason and the step at which a training ended, and whether it can be resumed.

    >>> described("done", 2000), described("interrupted", 12)
    ('done at step 2,000', 'stopped by Ctrl-C at step 12, where the same command resumes')
    """
    resumes = ", where the same command resumes" * (reason not in COMPLETE)
    return f"{ENDS.get(reason, reason)} at step {step:,}{resumes}"


class StartTimes(TypedDict, total=False):
    """The times of one start of a run, as its file has them."""

    began: str
    step: int
    ended: str
    seconds: Required[Mapping[Part, float]]


class PhaseTimer(Hook):
    """A clock that assigns all time to one part of the work or another; the one among the hooks of `fit` measures it.

    Args:
      path: the file with the times of all starts of a run, to which `save` adds this start; None for no file.
      began: the `time.monotonic()` at which the work began, by default now (the time of day may be changed meanwhile).

    >>> timer = PhaseTimer()
    >>> timer.at("stepping")
    'starting'
    >>> sorted(timer.seconds()) == sorted(PARTS)
    True
    """

    def __init__(self, path: pathlib.Path | None = None, *, began: float | None = None):
        self._path, self._earlier = path, read_starts(path) if path else []
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._part: Part = "starting"
        self._since = time.monotonic() if began is None else began
        day = time.gmtime(None if began is None else time.time() - (time.monotonic() - began))
        self._start: StartTimes = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", day), "seconds": {}}

    def started(self, start: Start) -> None:
        """Saves this start, which has no end yet; until then, the end of the one before counts."""
        self._start["step"] = start.step
        self.save()

    def begins(self, step: int, part: Part) -> None:
        """Begins another part of the work; the times are saved after each validation and save."""
        if self._part in ("validating", "saving"):
            self.save()
        self.at(part)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Notes the step, for the file."""
        self._start["step"] = step

    def ended(self, step: int, reason: str) -> None:
        """Saves the times, the last step and the reason."""
        self._start["step"], self._start["ended"] = step, reason
        self.save()

    def at(self, part: Part) -> Part:
        """Ends the current part of the work, which is returned, and begins another."""
        now, previous = time.monotonic(), self._part
        self._seconds[previous] += now - self._since
        self._part, self._since = part, now
        return previous

    def seconds(self) -> dict[Part, float]:
        """Returns the seconds of each part of this start."""
        self.at(self._part)
        return dict(self._seconds)

    def total(self) -> float:
        """Returns the seconds since the work of this start began."""
        return sum(self.seconds().values())

    def stepping(self) -> float:
        """Returns the seconds that the steps of this start took, including the wait for their batches."""
        seconds = self.seconds()
        return seconds["stepping"] + seconds["waiting for data"]

    def working(self) -> float:
        """Returns the seconds of this start that grow with the number of steps: all but starting and compiling."""
        seconds = self.seconds()
        return sum(seconds.values()) - seconds["starting"] - seconds["compiling"]

    def save(self) -> None:
        """Writes the times of this start after those of earlier starts, if there is a file."""
        if self._path:
            self._start["seconds"] = {part: round(value, 3) for part, value in self.seconds().items()}
            write_text(self._path, json.dumps([*self._earlier, self._start], indent=2) + "\n")

    def report(self) -> str:
        """Returns one line with the time of each part over all starts."""
        sums = total_seconds([*self._earlier, {"seconds": self.seconds()}])
        starts = f" in {len(self._earlier) + 1} starts" * bool(self._earlier)
        parts = ", ".join(f"{part} {duration(value)}" for part, value in sums.items())
        return f"time {duration(sum(sums.values()))}{starts}: {parts}"


def read_starts(path: pathlib.Path) -> list[StartTimes]:
    """Returns the times of all starts of a run; an empty list if the file is missing or damaged."""
    if not path.is_file():  # a named pipe would block
        return []
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    return [start for start in starts if _has_times(start)] if isinstance(starts, list) else []


def total_seconds(starts: Sequence[StartTimes]) -> dict[Part, float]:
    """Returns the seconds of each part over starts, as `read_starts` returns them.

    >>> total_seconds([{"seconds": {"stepping": 2.0}}, {"seconds": {"stepping": 3.0, "saving": 1.0}}])["stepping"]
    5.0
    """
    return {part: sum(start["seconds"].get(part, 0.0) for start in starts) for part in PARTS}


def _has_times(start: object) -> TypeGuard[StartTimes]:
    seconds = start.get("seconds") if isinstance(start, dict) else None
    values = seconds.values() if isinstance(seconds, dict) else [None]
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def duration(seconds: float) -> str:
    """Returns a time as hours, minutes and seconds; below a minute, seconds with tenths.

    >>> duration(4.25), duration(75), duration(7322)
    ('4.2 s', '1:15', '2:02:02')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"
