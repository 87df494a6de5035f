"""The results of training steps, for logs and screen."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import jax

from jaxformer.errors import JaxformerError
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.logging import JsonLog, TensorBoard
from jaxformer.training.progress import Reporter
from jaxformer.training.step import Metrics


class NonFiniteError(JaxformerError, ArithmeticError):
    """The loss or a gradient is not finite; the message names the step, and the batch by its number in the plan."""

    def __init__(self, step: int, batch: int, loss: float):
        super().__init__(f"step {step}, batch {batch}: the loss ({loss}) or a gradient is not finite")
        self.step, self.batch = step, batch


@dataclasses.dataclass
class Outputs:
    """The outputs of a training; any of them may be missing."""

    checkpoints: Checkpoints | None = None
    log: JsonLog | None = None
    board: TensorBoard | None = None
    reporter: Reporter | None = None
    peak_flops: float | None = None


class Recorder:
    """Reads each step's metrics one step late and passes them on to logs and screen."""

    def __init__(self, outputs: Outputs, *, steps: int, log_every: int):
        self._outputs, self._steps, self._every = outputs, steps, log_every
        self.skipped = 0
        self._waiting: tuple[int, int, Metrics, float] | None = None
        self._new_window()

    def _new_window(self) -> None:
        self._since, self._loss, self._tokens, self._flops = time.perf_counter(), 0.0, 0.0, 0.0

    def dispatched(self, number: int, batch: int, metrics: Metrics, flops: float) -> None:
        """Takes the metrics of a step on a batch of the batch plan, and records those of the step before."""
        self.catch_up()
        self._waiting = (number, batch, metrics, flops)

    def catch_up(self) -> None:
        """Records the waiting metrics, and flushes the log, so that they are not lost if the process is killed."""
        if self._waiting is None:
            return
        number, batch, metrics, flops = self._waiting
        self._waiting = None
        self._record(number, batch, {name: float(value) for name, value in jax.device_get(metrics).items()}, flops)
        if self._outputs.log:
            self._outputs.log.flush()

    def went_back(self, number: int, error: NonFiniteError) -> None:
        """Goes back to the end of a step: removes later lines of the log, and reports the error."""
        self._waiting = None
        if self._outputs.log:
            self._outputs.log.rewind(number)
        self._new_window()
        if self._outputs.reporter:
            self._outputs.reporter.say(f"{error}; back to step {number:,}, without that batch")

    def settle(self) -> None:
        """Catches up, and flushes TensorBoard: a kill after a checkpoint must not lose the steps that led to it."""
        self.catch_up()
        if self._outputs.board:
            self._outputs.board.flush()

    def validated(self, number: int, figures: Mapping[str, float], better: bool) -> None:
        """Records a validation."""
        out = self._outputs
        if out.log:
            out.log.write(number, **{f"validation_{name}": value for name, value in figures.items()})
            out.log.flush()
        if out.board:
            out.board.write(number, **{f"validation/{name}": value for name, value in figures.items()})
        if out.reporter:
            text = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
            out.reporter.say(f"step {number:,}: validation {text}{' (best so far)' if better else ''}")
        self._new_window()

    def _record(self, number: int, batch: int, metrics: dict[str, float], flops: float) -> None:
        out = self._outputs
        total, count = metrics.pop("loss_sum"), metrics.pop("count")
        finite = metrics.pop("finite", 1.0)
        loss = total / (count if count > 0 else 1.0)
        if out.log:
            out.log.write(number, loss=loss, tokens=count, **metrics)
        if finite:
            self._loss, self._tokens = self._loss + total, self._tokens + count
        else:
            if not metrics.get("skipped"):
                raise NonFiniteError(number, batch, loss)
            self.skipped += 1
            if out.reporter:
                out.reporter.say(f"step {number:,}: not finite, skipped ({self.skipped} so far)")
        self._flops += flops
        if (not self._every or number % self._every) and number != self._steps:
            return
        seconds = time.perf_counter() - self._since
        # The means are over all steps since the last line, because losses of short and of long sentences differ a lot.
        loss, rate, speed = self._loss / max(self._tokens, 1.0), self._tokens / seconds, self._flops / seconds
        self._new_window()
        utilization = speed / out.peak_flops if out.peak_flops else None
        if out.board:
            out.board.write(number, **{"train/loss": loss, "train/tokens_per_second": rate, **metrics})
        if out.reporter:
            out.reporter.update(number, loss=loss, tokens_per_second=rate, utilization=utilization)
