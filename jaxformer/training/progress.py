"""Display of training progress: a bar in a terminal or a notebook, elsewhere lines at intervals."""

from __future__ import annotations

import html
import math
import os
import sys
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from jaxformer import hardware
from jaxformer.multihost import processes
from jaxformer.training.hooks import Hook, Means, Start
from jaxformer.training.phase_timer import duration


class StderrConsole(Console):
    """A console on standard error that stops printing once it has no reader, as after ``2>&1 | head``.

    Rich's console would end the program in this case, without a message and without saving. It would also redraw lines
    in a file if FORCE_COLOR is set, as it is for the programs that a notebook starts.
    """

    def __init__(self, *, quiet: bool = False):
        super().__init__(stderr=True, quiet=quiet, force_interactive=None if sys.stderr.isatty() else False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # other code may still write there


class NotebookBar:
    """A bar in a notebook, drawn again in its place at most four times a second: HTML, which a saved notebook keeps.

    It is used as a bar of `rich`, which needs widgets in a notebook.
    """

    task_ids = (TaskID(0),)

    def __init__(self, total: int, completed: int):
        from IPython.display import DisplayHandle  # pyright: ignore[reportMissingImports]

        self._total, self._completed, self._drawn = total, completed, time.monotonic()
        self._texts = {"means": "", "left": ""}
        self._handle = DisplayHandle()
        self._handle.display(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        step = f"step {self._completed:,}/{self._total:,}"
        words = ", ".join(filter(None, self._texts.values()))
        bar = f'<progress value="{self._completed}" max="{self._total}"></progress>'
        return {"text/plain": f"{step} {words}", "text/html": f"<div>{step} {bar} {html.escape(words)}</div>"}

    def update(self, task: TaskID, *, completed: int, **texts: str) -> None:
        """Shows the number of completed steps, and texts beside the bar."""
        self._completed = completed
        self._texts |= texts
        if time.monotonic() - self._drawn > 0.25:
            self.stop()

    def stop(self) -> None:
        """Draws the bar as it is now."""
        self._drawn = time.monotonic()
        self._handle.update(self._data(), raw=True)


class Display(Hook):
    """The progress of a training: a bar in a notebook and on a terminal that can redraw a line; elsewhere lines.

    Args:
      unit: the plural name of what the loss is summed over.
      label_smoothing: that of the training loss, which is then named so, because that of validations has none.
      peak_flops: the peak FLOP/s of all devices, for model FLOP utilization.
      seconds: the least time between lines with means.
    """

    def __init__(
        self,
        console: Console,
        *,
        unit: str = "tokens",
        label_smoothing: float = 0.0,
        peak_flops: float | None = None,
        seconds: float = 10.0,
    ):
        self._console, self._unit, self._label_smoothing = console, unit, label_smoothing
        self._peak_flops, self._seconds = peak_flops, seconds
        self._bar: Progress | NotebookBar | None = None

    def started(self, start: Start) -> None:
        self._start, self._left, self._said, self._updated = start, "", -math.inf, -math.inf
        self._num_done, self._num_skipped, self._has_predicted = 0, 0, False
        if self._console.is_jupyter and not self._console.quiet:
            self._bar = NotebookBar(start.steps, start.step)
        elif self._console.is_interactive:
            columns = (TextColumn(text) for text in ("{task.fields[means]}", "{task.fields[left]}"))
            bar = Progress("step", MofNCompleteColumn(), BarColumn(), *columns, console=self._console)
            bar.add_task("", total=start.steps, completed=start.step, means="", left="")
            bar.start()
            self._bar = bar
        if self._label_smoothing:
            self.say(
                f"the smoothed loss has label smoothing {self._label_smoothing}; the validation loss has none, so it "
                "may be lower"
            )

    def reported(self, step: int, metrics: Mapping[str, float], means: Means) -> None:
        loss = "smoothed loss" if self._label_smoothing else "loss"
        text = f"{loss} {means.loss:.3f}, {means.tokens_per_second:,.0f} {self._unit}/s"
        if self._peak_flops and means.flops_per_second:
            text += f", MFU {means.flops_per_second / self._peak_flops:.0%}"
        now, is_last = time.monotonic(), step == self._start.steps
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=step, means=text)
        elif is_last or now - self._updated >= self._seconds:
            self._said = self._updated = now
            left = "" if is_last else self._left  # after the step before
            self.say(f"step {step:,}/{self._start.steps:,}: {text}{left}")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the time left, and predicts it once, after three steps or ten seconds."""
        self._num_done += 1
        if metrics.get("skipped"):
            self._num_skipped += 1
            self.say(f"step {step:,}: not finite, skipped ({self._num_skipped} so far)")
        worked, remaining = self._start.timer.working(), self._start.steps - step
        each = worked / self._num_done
        self._left, now = f", {duration(each * remaining)} left", time.monotonic()
        if remaining and not self._has_predicted and (self._num_done >= 3 or worked > 10):
            self._has_predicted = True
            steps, left = "step takes" if remaining == 1 else "steps take", duration(each * remaining)
            self.say(f"{remaining:,} more {steps} about {left} on this machine, at {each:.2g} s each")
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=step, left=self._left.removeprefix(", "))
        elif remaining and now - self._said >= self._seconds:
            self._said = now
            self.say(f"step {step:,}/{self._start.steps:,}{self._left}")

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        text = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        self.say(f"step {step:,}: validation {text}{' (best so far)' * better}")

    def went_back(self, step: int, problem: str) -> None:
        self.say(f"{problem}; back to step {step:,}, without that batch")

    def say(self, text: str) -> None:
        """Shows a line, above the bar if there is one."""
        print_line(self._console, text)

    def ended(self, step: int, reason: str) -> None:
        """Stops the bar, which hides the cursor of the terminal."""
        if self._bar:
            self._bar.stop()


class Count:
    """The progress of work on `total` items, such as sentences, as lines at most every `seconds`, with their `rate`.

    >>> count = Count(3, "sentences", print, seconds=0.0)
    >>> count(3)
    3/3 sentences
    """

    def __init__(self, total: int, what: str, say: Callable[[str], None], *, seconds: float = 10.0, rate: bool = False):
        self._total, self._what, self._say, self._seconds, self._rate = total, what, say, seconds, rate
        self._began = self._said = time.monotonic()
        self._done = 0

    def __call__(self, number: int) -> None:
        """Adds the number of items done since the last call."""
        self._done += number
        now = time.monotonic()
        if self._done and now - self._said >= self._seconds:
            self._said = now
            left = (now - self._began) / self._done * (self._total - self._done)
            rate = f", {self._done / (now - self._began):,.0f}/s" * self._rate
            ending = f", {duration(left)} left" * (self._done < self._total)
            self._say(f"{self._done:,}/{self._total:,} {self._what}{rate}{ending}")


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
