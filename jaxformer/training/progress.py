"""Display of training progress: a bar in a terminal, elsewhere lines at intervals."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from jaxformer import hardware
from jaxformer.multihost import processes
from jaxformer.training.phase_timer import duration


class StderrConsole(Console):
    """A console on standard error that stops printing once it has no reader, as after ``2>&1 | head``.

    Rich's console would end the program in this case, without a message and without saving.
    """

    def __init__(self, *, quiet: bool = False):
        super().__init__(stderr=True, quiet=quiet)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # other code may still write there


class Reporter(Protocol):
    """A sink for the progress of the training loop."""

    def update(self, step: int, *, loss: float, tokens_per_second: float, utilization: float | None) -> None: ...

    def tick(self, step: int, left: float) -> None:
        """Receives the number of the step that has ended, and the remaining seconds."""

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class Bar:
    """A progress bar with loss, tokens (or other units) per second, model FLOP utilization and remaining time."""

    def __init__(self, console: Console, *, start: int, steps: int, unit: str = "tokens", loss: str = "loss"):
        columns = (
            "step",
            f"{loss} [b]{{task.fields[loss]}}[/b]",
            f"{{task.fields[rate]}} {unit}/s",
            "{task.fields[mfu]}",
            "{task.fields[left]}",
        )
        text = [TextColumn(column) for column in columns]
        self._bar = Progress(text[0], MofNCompleteColumn(), BarColumn(), *text[1:], console=console)
        self._task = self._bar.add_task("", total=steps, completed=start, loss="-", rate="-", mfu="", left="")
        self._bar.start()

    def update(self, step: int, *, loss: float, tokens_per_second: float, utilization: float | None) -> None:
        mfu = "" if utilization is None else f"MFU {utilization:.0%}"
        self._bar.update(self._task, completed=step, loss=f"{loss:.3f}", rate=f"{tokens_per_second:,.0f}", mfu=mfu)

    def tick(self, step: int, left: float) -> None:
        self._bar.update(self._task, completed=step, left=f"{duration(left)} left")

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._bar.stop()


class Lines:
    """Plain lines, at most one every `seconds`, for files, pipes and schedulers."""

    def __init__(
        self, console: Console, *, steps: int, seconds: float = 10.0, unit: str = "tokens", loss: str = "loss"
    ):
        self._console, self._steps, self._seconds, self._unit, self._loss = console, steps, seconds, unit, loss
        self._left, self._said, self._updated = "", -math.inf, -math.inf

    def update(self, step: int, *, loss: float, tokens_per_second: float, utilization: float | None) -> None:
        now = time.monotonic()
        if now - self._updated < self._seconds and step < self._steps:
            return
        self._said = self._updated = now
        mfu = "" if utilization is None else f", MFU {utilization:.0%}"
        rate = f"{tokens_per_second:,.0f} {self._unit}/s"
        left = self._left if step < self._steps else ""  # the time left after the step before
        self.say(f"step {step:,}/{self._steps:,}: {self._loss} {loss:.3f}, {rate}{mfu}{left}")

    def tick(self, step: int, left: float) -> None:
        self._left = f", {duration(left)} left" if step < self._steps else ""
        now = time.monotonic()
        if self._left and now - self._said >= self._seconds:
            self._said = now
            self.say(f"step {step:,}/{self._steps:,}{self._left}")

    def say(self, text: str) -> None:
        print_line(self._console, text)

    def close(self) -> None:
        """Does nothing: lines need no cleanup."""


def reporter(console: Console, *, start: int, steps: int, unit: str = "tokens", smoothing: float = 0.0) -> Reporter:
    """Returns a bar if the console is a terminal that can redraw a line, unlike TERM=dumb; otherwise lines.

    Args:
      unit: the plural name of what the loss is summed over, such as "tokens".
      smoothing: the label smoothing of the training loss, which is then named so, because that of validations has none.
    """
    loss = "smoothed loss" if smoothing else "loss"
    made = Lines(console, steps=steps, unit=unit, loss=loss)
    if console.is_interactive:
        made = Bar(console, start=start, steps=steps, unit=unit, loss=loss)
    if smoothing:
        made.say(f"the smoothed loss has label smoothing {smoothing}; the validation loss has none, so it may be lower")
    return made


class Count:
    """The progress of work on `total` items, such as sentences, as lines at most every `seconds`.

    >>> count = Count(3, "sentences", print, seconds=0.0)
    >>> count(3)
    3/3 sentences
    """

    def __init__(self, total: int, what: str, say: Callable[[str], None], *, seconds: float = 10.0):
        self._total, self._what, self._say, self._seconds = total, what, say, seconds
        self._began = self._said = time.monotonic()
        self._done = 0

    def __call__(self, number: int) -> None:
        """Adds the number of items done since the last call."""
        self._done += number
        now = time.monotonic()
        if self._done and now - self._said >= self._seconds:
            self._said = now
            left = (now - self._began) / self._done * (self._total - self._done)
            ending = f", {duration(left)} left" if self._done < self._total else ""
            self._say(f"{self._done:,}/{self._total:,} {self._what}{ending}")


def print_line(console: Console, text: str) -> None:
    """Prints one line verbatim, without colors, markup or line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def peak_flops() -> tuple[float, str]:
    """Returns the peak FLOP/s of all devices, and the source: a data sheet, or a matrix product timed here.

    If a run has several processes, all must call it.
    """
    devices = jax.devices()
    kind = devices[0].device_kind
    chip = hardware.by_device_kind(kind)
    if chip is not None:
        return chip.bfloat16_flops * len(devices), f"{kind} data sheet, bf16"
    size = 1024
    x = jax.random.normal(jax.random.key(0), (size, size))
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        product(x, x).block_until_ready()
        best = min(best, time.perf_counter() - began)
    # JAX's CPU devices of a host share its processor; accelerators share nothing.
    count = processes.num_hosts() if devices[0].platform == "cpu" else len(devices)
    return 2 * size**3 / best * count, f"float32 product of {size} x {size} timed on this machine"
