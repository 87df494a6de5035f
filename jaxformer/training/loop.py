"""The training loop.  It knows steps, batches, validation and checkpoints, and no task."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax

from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.logging import JsonLog, TensorBoard
from jaxformer.training.progress import Reporter
from jaxformer.training.state import TrainState
from jaxformer.training.step import Metrics, Step

Reason = Literal["done", "patience", "terminated", "interrupted"]


class NonFiniteError(ArithmeticError):
    """The loss or a gradient is not finite; the message names the step."""


class Work(NamedTuple):
    """What a batch amounts to: target tokens, and the model's floating-point operations for a training step on it."""

    tokens: int
    flops: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """When to do what, in steps; 0 never."""

    steps: int
    validate_every: int = 0
    checkpoint_every: int = 0
    log_every: int = 10
    patience: int = 0
    """Validations without a better score before training stops."""


@dataclasses.dataclass
class Outputs:
    """Where results go; any of them may be missing."""

    checkpoints: Checkpoints | None = None
    log: JsonLog | None = None
    board: TensorBoard | None = None
    reporter: Reporter | None = None
    peak_flops: float | None = None


@dataclasses.dataclass
class Progress:
    """What, besides the state, a resumed run must know; saved with each checkpoint."""

    best_score: float = math.inf
    best_step: int = 0
    validations_since_best: int = 0

    def add(self, step: int, score: float) -> bool:
        """Takes note of a validation; True if it is the best so far."""
        if score < self.best_score:
            self.best_score, self.best_step, self.validations_since_best = score, step, 0
            return True
        self.validations_since_best += 1
        return False


@dataclasses.dataclass(frozen=True)
class Result:
    """How training ended.  `programs` is the number of compiled training steps, one a batch shape."""

    state: TrainState
    reason: Reason
    progress: Progress
    programs: int


def fit(
    step: Step,
    state: TrainState,
    batches: Callable[[int], Iterator[Any]],
    *,
    plan: Plan,
    validate: Callable[[TrainState], Mapping[str, float]] | None = None,
    work: Callable[[Any], Work] | None = None,
    outputs: Outputs | None = None,
    progress: Progress | None = None,
) -> Result:
    """Trains until `plan.steps`, until patience runs out, or until asked to stop by SIGTERM or Ctrl-C.

    The state of a run that was stopped, saved and restored goes on as if nothing had happened: `batches` starts
    wherever it is told to.  Metrics of step n are read after step n + 1 has been given to the device, so the device
    never waits for the host.

    Args:
      batches: from a step to the batches from that step on.
      validate: from a state to figures, of which "loss" is the score (lower is better).
      work: what a batch amounts to, for tokens/s and utilisation.
      progress: of the run that is resumed.

    Raises:
      NonFiniteError: a loss or gradient was not finite and the step does not skip such.
      CheckpointError: a checkpoint could not be written.
    """
    outputs = outputs or Outputs()
    progress = progress or Progress()
    start = int(state.step)
    recorder = _Recorder(outputs, plan)
    validated = None
    reason: Reason = "done"
    with _stop_signals() as stopped:
        stream = batches(start)
        for number in range(start + 1, plan.steps + 1):
            batch = next(stream)
            state, metrics = step(state, batch)
            recorder.dispatched(number, metrics, work(batch) if work else Work(0, 0.0))
            last = number == plan.steps or bool(stopped)
            score = None
            if validate and _due(number, plan.validate_every, last=number == plan.steps):
                recorder.catch_up()
                validated = dict(validate(state))
                score = validated["loss"]
                better = progress.add(number, score)
                recorder.validated(number, validated, better)
                if plan.patience and progress.validations_since_best >= plan.patience:
                    reason, last = "patience", True
            if outputs.checkpoints and _due(number, plan.checkpoint_every, last=last):
                recorder.catch_up()
                outputs.checkpoints.save(number, state, {"progress": dataclasses.asdict(progress)}, score=score)
            if stopped:
                reason = stopped[0]
            if last:
                break
        recorder.catch_up()
    if outputs.checkpoints:
        outputs.checkpoints.wait()
    return Result(state, reason, progress, _programs(step))


def _due(number: int, every: int, *, last: bool) -> bool:
    return every > 0 and (number % every == 0 or last)


def _programs(step: Step) -> int:
    size = getattr(step, "_cache_size", None)
    return size() if size else 0


class _Recorder:
    """Reads each step's metrics one step late and passes them on to logs and screen."""

    def __init__(self, outputs: Outputs, plan: Plan):
        self._outputs, self._plan = outputs, plan
        self._waiting: tuple[int, Metrics, Work] | None = None
        self._since = time.perf_counter()
        self._window = Work(0, 0.0)

    def dispatched(self, number: int, metrics: Metrics, work: Work) -> None:
        """Takes over a step's metrics and records those of the step before."""
        self.catch_up()
        self._waiting = (number, metrics, work)

    def catch_up(self) -> None:
        """Records what is waiting, and makes sure a kill would not lose it."""
        if self._waiting is None:
            return
        number, metrics, work = self._waiting
        self._waiting = None
        self._record(number, {name: float(value) for name, value in jax.device_get(metrics).items()}, work)
        if self._outputs.log:
            self._outputs.log.flush()

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
        self._since, self._window = time.perf_counter(), Work(0, 0.0)

    def _record(self, number: int, metrics: dict[str, float], work: Work) -> None:
        out = self._outputs
        total, count = metrics.pop("loss_sum"), metrics.pop("count")
        finite = metrics.pop("finite", 1.0)
        loss = total / max(count, 1.0)
        if out.log:
            # JSON has no NaN; null says as much.
            values = {"loss": loss, "tokens": count, **metrics}
            out.log.write(number, **{n: v if math.isfinite(v) else None for n, v in values.items()})
        if not finite and not metrics.get("skipped"):
            raise NonFiniteError(f"step {number}: the loss ({loss}) or a gradient is not finite")
        self._window = Work(self._window.tokens + work.tokens, self._window.flops + work.flops)
        if number % self._plan.log_every and number != self._plan.steps:
            return
        seconds = time.perf_counter() - self._since
        rate, speed = self._window.tokens / seconds, self._window.flops / seconds
        self._since, self._window = time.perf_counter(), Work(0, 0.0)
        used = speed / out.peak_flops if out.peak_flops else None
        if out.board:
            out.board.write(number, **{"train/loss": loss, "train/tokens_per_second": rate, **metrics})
        if out.reporter:
            out.reporter.update(number, loss=loss, tokens_per_second=rate, utilisation=used)


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[Reason]]:
    """Collects requests to stop; a second Ctrl-C interrupts at once.  Outside the main thread there are none."""
    stopped: list[Reason] = []

    def handle(number: int, _: Any) -> None:
        if number == signal.SIGINT and stopped:
            raise KeyboardInterrupt
        stopped.append("interrupted" if number == signal.SIGINT else "terminated")

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread: signals are somebody else's
        yield stopped
        return
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
