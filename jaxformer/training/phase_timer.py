"""The time that a run spends on each part of its work, over all restarts."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from jaxformer.files import write_text

Part = Literal["starting", "compiling", "waiting for data", "stepping", "validating", "saving"]
PARTS: tuple[Part, ...] = ("starting", "compiling", "waiting for data", "stepping", "validating", "saving")

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
    resumes = "" if reason in COMPLETE else ", where the same command resumes"
    return f"{ENDS.get(reason, reason)} at step {step:,}{resumes}"


class PhaseTimer:
    """A clock that assigns all time to one part of the work or another.

    Args:
      path: the file with the times of all starts of a run, to which `save` adds this start; None for no file.
      began: the `time.monotonic()` at which the work began, by default now (the time of day may be changed meanwhile).

    >>> timer = PhaseTimer()
    >>> timer.at("stepping")
    >>> sorted(timer.seconds()) == sorted(PARTS)
    True
    """

    def __init__(self, path: pathlib.Path | None = None, *, began: float | None = None):
        self._path, self._earlier = path, read_starts(path) if path else []
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._part: Part = "starting"
        self._since = time.monotonic() if began is None else began
        day = time.gmtime(None if began is None else time.time() - (time.monotonic() - began))
        self._about: dict[str, Any] = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", day)}

    def at(self, part: Part) -> None:
        """Ends the current part of the work, and begins another."""
        now = time.monotonic()
        self._seconds[self._part] += now - self._since
        self._part, self._since = part, now

    @contextlib.contextmanager
    def during(self, part: Part) -> Iterator[None]:
        """Assigns the time inside the block to `part`, and then returns to the previous part."""
        before = self._part
        self.at(part)
        try:
            yield
        finally:
            self.at(before)

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

    def save(self, **facts: Any) -> None:
        """Writes the times of this start, with `facts`, after those of earlier starts."""
        self._about |= facts
        if self._path:
            start = {**self._about, "seconds": {part: round(value, 3) for part, value in self.seconds().items()}}
            write_text(self._path, json.dumps([*self._earlier, start], indent=2) + "\n")

    def report(self) -> str:
        """Returns one line with the time of each part over all starts."""
        sums = total_seconds([*self._earlier, {"seconds": self.seconds()}])
        number = len(self._earlier) + 1
        starts = f" in {number} starts" if number > 1 else ""
        parts = ", ".join(f"{part} {duration(value)}" for part, value in sums.items())
        return f"time {duration(sum(sums.values()))}{starts}: {parts}"


def read_starts(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the times of all starts of a run; an empty list if the file is missing or damaged."""
    if not path.is_file():  # a named pipe would block
        return []
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    return [start for start in starts if _has_times(start)] if isinstance(starts, list) else []


def total_seconds(starts: Sequence[Mapping[str, Any]]) -> dict[Part, float]:
    """Returns the seconds of each part over starts, as `read_starts` returns them.

    >>> total_seconds([{"seconds": {"stepping": 2.0}}, {"seconds": {"stepping": 3.0, "saving": 1.0}}])["stepping"]
    5.0
    """
    return {part: sum(start["seconds"].get(part, 0.0) for start in starts) for part in PARTS}


def _has_times(start: Any) -> bool:
    seconds = start.get("seconds") if isinstance(start, dict) else None
    return isinstance(seconds, dict) and all(isinstance(value, int | float) for value in seconds.values())


def duration(seconds: float) -> str:
    """Returns a time as hours, minutes and seconds; below a minute, seconds with tenths.

    >>> duration(4.25), duration(75), duration(7322)
    ('4.2 s', '1:15', '2:02:02')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
