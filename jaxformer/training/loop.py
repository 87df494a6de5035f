"""The training loop.  It knows steps, batches, validation and checkpoints, and no task."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax

from jaxformer.sharding import processes
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.logging import JsonLog, TensorBoard
from jaxformer.training.progress import Reporter
from jaxformer.training.state import TrainState
from jaxformer.training.step import Metrics, Step

Reason = Literal["done", "patience", "time", "terminated", "interrupted"]


class NonFiniteError(ArithmeticError):
    """The loss or a gradient is not finite; the message names the step."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """When to do what, in steps; 0 never.

    Where there are checkpoints, one is also written at the last step, when asked to stop, and at a best validation.
    """

    steps: int
    validate_every: int = 0
    checkpoint_every: int = 0
    log_every: int = 10
    patience: int = 0
    """Validations without a better score before training stops."""
    metric: str = "loss"
    """The validation figure that is the score."""
    higher_is_better: bool = False
    """Whether that figure grows as the model improves, as BLEU does."""
    minutes: float = 0
    """Wall-clock time after which to save and stop, for this process."""
    checkpoint_minutes: float = 0
    """Wall-clock time between checkpoints, besides those at fixed steps."""


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

    best_score: float = math.inf  # lower is better: the negative of a metric that grows
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
    """How training ended.

    `programs` is the number of compiled training steps, one a batch shape; `skipped` the number of updates that this
    process left out because they were not finite.
    """

    state: TrainState
    reason: Reason
    progress: Progress
    programs: int
    skipped: int = 0


def fit(
    step: Step,
    state: TrainState,
    batches: Callable[[int], Iterator[Any]],
    *,
    plan: Plan,
    validate: Callable[[TrainState], Mapping[str, float]] | None = None,
    flops: Callable[[Any], float] | None = None,
    outputs: Outputs | None = None,
    progress: Progress | None = None,
) -> Result:
    """Trains until `plan.steps`, until patience or time runs out, or until asked to stop by SIGTERM or Ctrl-C.

    The state of a run that was stopped, saved and restored goes on as if nothing had happened: `batches` starts
    wherever it is told to.  Metrics of step n are read after step n + 1 has been given to the device, so the device
    never waits for the host.

    Args:
      batches: from a step to the batches from that step on.
      validate: from a state to figures, `plan.metric` among them.
      flops: the model's floating-point operations in a step on a batch, for utilisation.
      progress: of the run that is resumed.

    Raises:
      NonFiniteError: a loss or gradient was not finite and the step does not skip such.
      CheckpointError: a checkpoint could not be written.
      ValueError: the batches end before the plan does, or a validation lacks `plan.metric`.
    """
    outputs, progress = outputs or Outputs(), progress or Progress()
    recorder, clock, start = _Recorder(outputs, plan), _Clock(plan), int(state.step)
    reason: Reason | None = "done" if start >= plan.steps else "patience" if _impatient(plan, progress) else None
    with _stop_signals() as stopped:
        stream, number = iter(batches(start)) if reason is None else iter(()), start
        while reason is None:
            number += 1
            batch = _next(stream, number, plan)
            state, metrics = step(state, batch)
            recorder.dispatched(number, metrics, flops(batch) if flops else 0.0)
            score, better = None, False
            if validate and _due(number, plan.validate_every, last=number == plan.steps):
                recorder.settle()
                figures = dict(validate(state))
                score = _score(figures, plan)
                better = progress.add(number, score)
                recorder.validated(number, figures, better)
            reason = _why_stop(number, plan, progress, _asked(number, stopped), clock)
            last = reason is not None
            if outputs.checkpoints and (
                last or better or clock.save_due(number) or _due(number, plan.checkpoint_every)
            ):
                recorder.settle()
                outputs.checkpoints.save(number, state, {"progress": dataclasses.asdict(progress)}, score=score)
                clock.saved()
        recorder.settle()
        if outputs.checkpoints:  # a signal that comes now must not cut the last save short
            outputs.checkpoints.wait()
    return Result(state, reason, progress, _programs(step), recorder.skipped)


def _due(number: int, every: int, *, last: bool = False) -> bool:
    return every > 0 and (number % every == 0 or last)


def _impatient(plan: Plan, progress: Progress) -> bool:
    return bool(plan.patience) and progress.validations_since_best >= plan.patience


def _asked(number: int, stopped: list[Reason]) -> Reason | None:
    """Who asked to stop; of several processes any one may have been asked, and all stop at the same step."""
    if processes.asked_to_stop(number):
        return "terminated"
    return stopped[0] if stopped else None


def _why_stop(number: int, plan: Plan, progress: Progress, asked: Reason | None, clock: _Clock) -> Reason | None:
    """Why this step is the last, if it is; a run that is complete is complete, whatever signal came meanwhile."""
    if number >= plan.steps:
        return "done"
    if _impatient(plan, progress):
        return "patience"
    return asked or ("time" if clock.up(number) else None)


def _next(stream: Iterator[Any], number: int, plan: Plan) -> Any:
    for batch in stream:
        return batch
    raise ValueError(f"the batches ended before step {number:,}; the plan has {plan.steps:,} steps")


def _score(figures: Mapping[str, float], plan: Plan) -> float:
    if plan.metric not in figures:
        raise ValueError(f"validation gave {sorted(figures)}, and the plan's metric is {plan.metric!r}")
    return -figures[plan.metric] if plan.higher_is_better else figures[plan.metric]


class _Clock:
    """The parts of a plan that are in minutes."""

    def __init__(self, plan: Plan):
        self._plan, self._began = plan, time.monotonic()
        self._saved = self._began

    def up(self, number: int) -> bool:
        return self._over(self._plan.minutes, self._began, number)

    def save_due(self, number: int) -> bool:
        return self._over(self._plan.checkpoint_minutes, self._saved, number)

    def _over(self, minutes: float, since: float, number: int) -> bool:
        """Of several processes the first one's clock counts, and is asked now and then, for the others wait for it."""
        if minutes <= 0 or (jax.process_count() > 1 and number % self._plan.log_every):
            return False
        return processes.decided(time.monotonic() - since >= minutes * 60)

    def saved(self) -> None:
        self._saved = time.monotonic()


def _programs(step: Step) -> int:
    size = getattr(step, "_cache_size", None)
    return size() if size else 0


class _Recorder:
    """Reads each step's metrics one step late and passes them on to logs and screen."""

    def __init__(self, outputs: Outputs, plan: Plan):
        self._outputs, self._plan = outputs, plan
        self.skipped = 0
        self._waiting: tuple[int, Metrics, float] | None = None
        self._new_window()

    def _new_window(self) -> None:
        self._since, self._loss, self._tokens, self._flops = time.perf_counter(), 0.0, 0.0, 0.0

    def dispatched(self, number: int, metrics: Metrics, flops: float) -> None:
        """Takes over a step's metrics and records those of the step before."""
        self.catch_up()
        self._waiting = (number, metrics, flops)

    def catch_up(self) -> None:
        """Records what is waiting, and makes sure a kill would not lose it."""
        if self._waiting is None:
            return
        number, metrics, flops = self._waiting
        self._waiting = None
        self._record(number, {name: float(value) for name, value in jax.device_get(metrics).items()}, flops)
        if self._outputs.log:
            self._outputs.log.flush()

    def settle(self) -> None:
        """Catches up, and hands over what is held back: a kill after a checkpoint must not lose what led to it."""
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

    def _record(self, number: int, metrics: dict[str, float], flops: float) -> None:
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
                raise NonFiniteError(f"step {number}: the loss ({loss}) or a gradient is not finite")
            self.skipped += 1
            if out.reporter:
                out.reporter.say(f"step {number:,}: not finite, skipped ({self.skipped} so far)")
        self._flops += flops
        if number % self._plan.log_every and number != self._plan.steps:
            return
        seconds = time.perf_counter() - self._since
        # Of all steps since the last line: batches of short sentences and of long ones have very different losses.
        loss, rate, speed = self._loss / max(self._tokens, 1.0), self._tokens / seconds, self._flops / seconds
        self._new_window()
        used = speed / out.peak_flops if out.peak_flops else None
        if out.board:
            out.board.write(number, **{"train/loss": loss, "train/tokens_per_second": rate, **metrics})
        if out.reporter:
            out.reporter.update(number, loss=loss, tokens_per_second=rate, utilisation=used)


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[Reason]]:
    """Collects requests to stop; a second Ctrl-C interrupts at once.  Outside the main thread there are none.

    Of several processes each hears of another's SIGTERM through JAX, which has its own handler for it; Ctrl-C becomes
    such a signal, so that all stop at the same step.
    """
    stopped: list[Reason] = []

    def handle(number: int, _: Any) -> None:
        if number == signal.SIGINT and stopped:
            raise KeyboardInterrupt
        stopped.append("interrupted" if number == signal.SIGINT else "terminated")

    def pass_on(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGTERM)

    handlers = {signal.SIGTERM: handle, signal.SIGINT: handle}
    if jax.process_count() > 1:
        handlers = {signal.SIGINT: pass_on}
    try:
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # not the main thread: signals are somebody else's
        yield stopped
        return
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            # None: a handler from outside Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
