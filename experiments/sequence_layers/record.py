"""A file of results that grows case by case, so that the same command resumes."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments import command
from jaxformer.errors import ConfigError


class Record:
    """The cases that are done, with the settings and circumstances of each call that added some."""

    def __init__(self, path: pathlib.Path, settings: Mapping[str, Any]):
        """Reads the file, if it exists.

        Raises:
          ConfigError: the file holds results of other settings, or is no such file.
        """
        self.path = path
        self.data: dict[str, Any] = {"settings": json.loads(json.dumps(settings)), "calls": [], "cases": {}}
        if path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                same = found["settings"] == self.data["settings"]
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path} is not a results file: {error}; give another --out or delete it") from None
            if not same:
                raise ConfigError(f"{path} holds results of other settings; give another --out or delete it")
            self.data = found
        self.call = command.facts() | circumstances() | {"cases": [], "seconds": 0.0}

    def __call__(self, name: str, compute: Callable[[], Any]) -> Any:
        """Returns the result of a case; computes and saves it if it is not there."""
        if name not in self.data["cases"]:
            began = time.monotonic()
            self.data["cases"][name] = compute()
            if not self.call["cases"]:
                self.data["calls"].append(self.call)
            self.call["cases"].append(name)
            self.call["seconds"] = round(self.call["seconds"] + time.monotonic() - began, 1)
            command.write_results(self.path, self.data)
        return self.data["cases"][name]


def circumstances() -> dict[str, Any]:
    """Returns the compiler's flags and the load of the machine, on which times depend."""
    return {"xla_flags": os.environ.get("XLA_FLAGS", ""), "load": round(os.getloadavg()[0], 1)}


def bar(console: Console) -> Progress:
    """Returns a progress bar; where output is no terminal, only the lines above it appear."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, disable=not console.is_interactive)
