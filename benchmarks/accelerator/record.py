"""The results of a part, in a JSON file that is complete after every case."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.files import write_text

MOST_INTERRUPTIONS = 2
"""The number of interruptions after which a case counts as failed."""

Result = Mapping[str, Any]
"""The results of a case, as plain data."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of a part."""

    out: pathlib.Path
    deadline: float
    """The end of this call, by ``time.monotonic()``."""
    tiny: bool = False
    data: pathlib.Path | None = None

    @property
    def left(self) -> float:
        """The seconds until the deadline."""
        return self.deadline - time.monotonic()


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement."""

    name: str
    run: Callable[[Settings], Result]
    seconds: float = 15.0
    """The time that it needs; it does not begin with less."""
    process: str = "all"
    """Cases that follow each other share a process if they have the same name here."""
    flags: str = ""
    """Flags that are added to XLA_FLAGS for its process."""

    @property
    def group(self) -> tuple[str, str]:
        """The process and its flags."""
        return self.process, self.flags


class Refused(Exception):
    """Nothing can be measured here, and the message says why: a package is missing, or a kernel refuses."""


class Unfinished(Exception):
    """The case continues in the next call of its part; the message has its progress."""


class Record:
    """The file ``part-N.json``: the machines that measured, and each case with its result or its error."""

    def __init__(self, path: pathlib.Path, *, tiny: bool):
        self.path = path
        self.sessions: list[dict[str, Any]] = []
        self.cases: dict[str, dict[str, Any]] = {}
        self.open: dict[str, dict[str, Any]] = {}
        """Cases that began and have no result: the seconds spent on them, interruptions, a note, and the machine."""
        self.running: str | None = None
        self._session = 0
        if path.exists():
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved["tiny"] != tiny:
                raise ConfigError(f"{path} must hold results of the same mode, got tiny={saved['tiny']}; choose --out")
            self.sessions, self.cases, self.open = saved["sessions"], saved["cases"], saved["open"]
            self.running = saved["running"]
        self.tiny = tiny

    def begin(self, header: Mapping[str, Any]) -> None:
        """Adds the machine that measures from now on.

        Raises:
          ConfigError: the file holds results of another device.
        """
        if self.sessions and self.sessions[0]["device"] != header["device"]:
            there, here = self.sessions[0]["device"], header["device"]
            raise ConfigError(f"{self.path} must hold results of one device, got {there} and {here}; choose --out")
        if dict(header) not in self.sessions:
            self.sessions.append(dict(header))
        self._session = self.sessions.index(dict(header))
        self._write()

    def start(self, name: str) -> None:
        """Records that a case runs, so that a later call can tell if this process died during it."""
        self.running = name
        self.open.setdefault(name, {"spent": 0.0, "interruptions": 0, "note": ""})["session"] = self._session
        self._write()

    def finish(self, name: str, entry: Mapping[str, Any], seconds: float) -> None:
        """Adds what a case measured, or its error."""
        began = self.open.pop(name, {"spent": 0.0})
        session = began.get("session", self._session)  # the supervisor of a dead process has none of its own
        entry = {**entry, "took": round(began["spent"] + seconds, 2), "session": session}
        self.cases[name] = plain(entry)
        self.running = None
        self._write()

    def pause(self, name: str, note: str, seconds: float) -> None:
        """Leaves a case for the next call."""
        self.open[name]["spent"] += seconds
        self.open[name]["note"] = note
        self.running = None
        self._write()

    def interrupted(self, reason: str) -> None:
        """Leaves the running case for another try, or gives it up after the last one."""
        name, self.running = self.running, None
        assert name is not None
        self.open[name]["interruptions"] += 1
        if self.open[name]["interruptions"] < MOST_INTERRUPTIONS:
            self._write()
        else:
            self.finish(name, {"error": f"given up after {MOST_INTERRUPTIONS} interruptions: {reason}"}, 0)

    def forget_errors(self, only: Collection[str] = ()) -> None:
        """Removes the cases that failed or were refused, by default all of them, so that they are measured again."""
        failed = {name for name, entry in self.cases.items() if {"error", "refused"} & set(entry)}
        self.cases = {x: entry for x, entry in self.cases.items() if x not in failed or (only and x not in only)}
        self._write()

    def _write(self) -> None:
        data = {"tiny": self.tiny, "sessions": self.sessions, "running": self.running}
        write_text(self.path, json.dumps({**data, "open": self.open, "cases": self.cases}, indent=1) + "\n")


def plain(value: Any) -> Any:
    """Returns a value as JSON can hold it; NaN and infinity become text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def aligned(rows: Iterable[Iterable[object]]) -> str:
    """Returns rows as lines with aligned columns; the first row is the heading.

    >>> print(aligned([("case", "ms"), ("long", 12.5)]))
    case    ms
    long  12.5
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in texts
    ]
    return "\n".join(line.rstrip() for line in lines)


def number(value: Any, form: str, *, factor: float = 1.0) -> str:
    """Formats a number; text and missing numbers, such as "nan" and None, are shown as they are.

    >>> number(0.5, ".0%"), number(None, ".1f"), number(2e9, ".1f", factor=1e-9)
    ('50%', '-', '2.0')
    """
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value * factor, form)
