"""Display of the progress of a training: a bar in a terminal, elsewhere a line at intervals."""

from __future__ import annotations

import time
from typing import Protocol

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jaxformer import hardware


class Reporter(Protocol):
    """A sink for the progress of the training loop."""

    def update(self, step: int, *, loss: float, tokens_per_second: float, utilization: float | None) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class Bar:
    """A progress bar with loss, tokens/s, model FLOP utilization and time left."""

    def __init__(self, console: Console, *, start: int, steps: int):
        columns = "step", "loss [b]{task.fields[loss]}[/b]", "{task.fields[rate]} tokens/s", "{task.fields[mfu]}"
        text = [TextColumn(column) for column in columns]
        self._bar = Progress(
            text[0], MofNCompleteColumn(), BarColumn(), *text[1:], TimeRemainingColumn(), console=console
        )
        self._task = self._bar.add_task("", total=steps, completed=start, loss="-", rate="-", mfu="")
        self._bar.start()

    def update(self, step: int, *, loss: float, tokens_per_second: float, utilization: float | None) -> None:
        mfu = "" if utilization is None else f"MFU {utilization:.0%}"
        self._bar.update(self._task, completed=step, loss=f"{loss:.3f}", rate=f"{tokens_per_second:,.0f}", mfu=mfu)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._bar.stop()


class Lines:
    """Plain lines, at most one every `seconds`, for files, pipes and schedulers."""

    def __init__(self, console: Console, *, start: int, steps: int, seconds: float = 10.0):
        self._console, self._steps, self._seconds = console, steps, seconds
        self._start, self._began, self._last = start, time.monotonic(), 0.0

    def update(self, step: int, *, loss: float, tokens_per_second: float, utilization: float | None) -> None:
        now = time.monotonic()
        if now - self._last < self._seconds and step < self._steps:
            return
        self._last = now
        left = (now - self._began) / max(step - self._start, 1) * (self._steps - step)
        mfu = "" if utilization is None else f", MFU {utilization:.0%}"
        self.say(
            f"step {step:,}/{self._steps:,}: loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s{mfu}, "
            f"{int(left // 60)}:{int(left % 60):02d} left"
        )

    def say(self, text: str) -> None:
        print_line(self._console, text)

    def close(self) -> None:
        """Does nothing: lines need no cleanup."""


def reporter(console: Console, *, start: int, steps: int) -> Reporter:
    """Returns a bar if the console is a terminal, else lines."""
    return (Bar if console.is_terminal else Lines)(console, start=start, steps=steps)


def print_line(console: Console, text: str) -> None:
    """Prints one line as it is, without colors, markup or line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def peak_flops() -> tuple[float, str]:
    """Returns the matrix FLOP/s of all devices, and its source: a data sheet, or a product timed on this machine."""
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
    # The CPU devices of JAX share one processor; accelerators share nothing.
    count = 1 if devices[0].platform == "cpu" else len(devices)
    return 2 * size**3 / best * count, f"float32 product of {size} x {size} timed on this machine"
