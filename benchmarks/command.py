"""The parts that all benchmarks share: options, rounds with a progress bar, the file of results, and exit codes.

Exit codes: 0: done; 2: an option is wrong; 130: Ctrl-C; 143: SIGTERM; 141: the reader of standard output has exited; 1:
any other error.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.worker import Side
from experiments.command import count, facts
from experiments.program import guarded, raise_signals
from jaxformer.files import check_writable, write_text

_FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def parser(name: str, description: str | None, *, required: bool = False) -> argparse.ArgumentParser:
    """Returns a parser with the option ``--out``.

    Args:
      name: the benchmark, for ``python -m benchmarks.<name>``.
      description: the docstring of the benchmark, shown as it is written.
      required: ``--out`` must be given.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    about = "JSON file for the results, written after every case"
    made.add_argument("--out", type=pathlib.Path, required=required, help=about)
    return made


def add_torch(to: argparse.ArgumentParser) -> None:
    """Adds the option ``--torch-python``."""
    to.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch and NumPy")


def add_threads(to: argparse.ArgumentParser) -> None:
    """Adds the option ``--threads``: by default all cores of this process, and at most as many."""
    cores = len(os.sched_getaffinity(0))

    def read(text: str) -> int:
        number = count(text)
        if number > cores:
            raise argparse.ArgumentTypeError(f"it must be at most the number of cores here, {cores}, got {number}")
        return number

    to.add_argument("--threads", type=read, default=cores, help="CPU threads of each side; by default all cores")


def find_torch(python: str) -> bool:
    """Returns True if an interpreter has PyTorch; otherwise, prints how to get it.

    Raises:
      OSError: there is no such interpreter.
    """
    found = subprocess.run([python, "-c", _FIND_TORCH]).returncode == 0
    if not found:
        print("PyTorch not found (pip install torch, or pass an interpreter that has it as --torch-python)", flush=True)
    return found


def add_shapes(to: argparse.ArgumentParser, form: str, default: Sequence[str]) -> None:
    """Adds the option ``--shapes``, such as 2x128x8x64 in the form ``BxTxNxH``, which is read as a tuple."""

    def read(text: str) -> tuple[int, ...]:
        numbers = text.split("x")
        if len(numbers) != len(form.split("x")):
            raise argparse.ArgumentTypeError(f"it must be {form}, got {text}")
        return tuple(map(count, numbers))

    to.add_argument("--shapes", nargs="+", type=read, default=[read(text) for text in default], help=f"{form} each")


def rounds(number: int) -> Iterator[int]:
    """Yields the numbers of rounds; a terminal shows the time left, drawn between rounds, which it does not disturb."""
    columns = TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    progress.disable = not progress.console.is_interactive
    with progress:
        task = progress.add_task("", total=number)
        for turn in range(number):
            progress.refresh()
            yield turn
            progress.advance(task)


def turns(sides: Iterable[Side], number: int, steps: int) -> Iterator[None]:
    """Measures some steps of each side in each of a number of rounds, in alternating order; yields after each round."""
    ordered = sorted(sides, key=lambda side: side.name)
    for turn in rounds(number):
        for side in ordered[:: -1 if turn % 2 else 1]:
            side.round(steps)
        yield


def take_turns(sides: Sequence[Side], number: int, steps: int) -> dict[str, dict[str, Any]]:
    """Measures sides in turn, see `turns`, and returns their results by name."""
    for _ in turns(sides, number, steps):
        pass
    return {side.name: side.close() for side in sides}


def write(out: pathlib.Path | None, results: Mapping[str, Any]) -> None:
    """Writes results with the circumstances of their measurement, if there is a file for them."""
    if out is not None:
        write_text(out, json.dumps({**facts(), "load": os.getloadavg(), **results}, indent=1) + "\n")


def exit_code(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    """Runs a benchmark and returns its exit code, after a check that the file of results can be written."""

    def checked() -> None:
        if options.out is not None:
            check_writable(options.out)
        run(options)

    return guarded(checked, stopped="interrupted", terminated=128 + signal.SIGTERM)


def script(run: Callable[[], int]) -> NoReturn:
    """Runs the `main` of a benchmark as a program and exits."""
    raise_signals()
    sys.exit(run())
