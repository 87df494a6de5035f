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

from jaxformer.multihost import processes
from jaxformer.training.recorder import NonFiniteError, Outputs, Recorder
from jaxformer.training.state import TrainState
from jaxformer.training.step import Step
from jaxformer.training.watchdog import Watchdog

Reason = Literal["done", "patience", "time", "terminated", "interrupted"]


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
    rollbacks: int = 0
    """How often in a row to go back to the last checkpoint when a step is not finite, and leave its batch out."""
    stall_minutes: float = 0
    """Time without progress after which the process says where it is stuck, and ends."""
    minutes: float = 0
    """Wall-clock time after which to save and stop, for this process."""
    checkpoint_minutes: float = 0
    """Wall-clock time between checkpoints, besides those at fixed steps."""


@dataclasses.dataclass
class Progress:
    """What, besides the state, a resumed run must know; saved with each checkpoint."""

    best_score: float = math.inf  # lower is better: the negative of a metric that grows
    best_step: int = 0
    validations_since_best: int = 0
    left_out: list[int] = dataclasses.field(default_factory=list)
    """Batches, by their number in the plan, that are never trained on: they were not finite."""

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
      flops: the model's floating-point operations in a step on a batch, for utilization.
      progress: of the run that is resumed.

    Raises:
      NonFiniteError: a loss or gradient was not finite, the step does not skip such, and the plan allows no rollback.
      CheckpointError: a checkpoint could not be written.
      ValueError: the batches end before the plan does, or a validation lacks `plan.metric`.
    """
    outputs, progress = outputs or Outputs(), progress or Progress()
    recorder = Recorder(outputs, steps=plan.steps, log_every=plan.log_every)
    with _stop_signals() as stopped, Watchdog(plan.stall_minutes * 60) as watchdog:
        run = _Run(step, state, batches, plan, validate, flops, outputs, progress, recorder, watchdog)
        reason: Reason | None = None
        if run.number >= plan.steps or _impatient(plan, progress):
            reason = "done" if run.number >= plan.steps else "patience"
        while reason is None:
            try:
                reason = run.advance(stopped)
            except NonFiniteError as error:
                run.go_back(error)
        recorder.settle()
        if outputs.checkpoints:  # a signal that comes now must not cut the last save short
            watchdog.at("waiting for the last checkpoint", together=True)
            outputs.checkpoints.wait()
    return Result(run.state, reason, run.progress, _programs(step), recorder.skipped)


@dataclasses.dataclass
class _Run:
    """A run under way: the state after `number` steps, and what each further one takes."""

    step: Step
    state: TrainState
    batches: Callable[[int], Iterator[Any]]
    plan: Plan
    validate: Callable[[TrainState], Mapping[str, float]] | None
    flops: Callable[[Any], float] | None
    outputs: Outputs
    progress: Progress
    recorder: Recorder
    watchdog: Watchdog

    def __post_init__(self) -> None:
        self._clock, self._rollbacks = _Clock(self.plan), 0
        self._abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state)
        self._start()

    def _start(self) -> None:
        self.number = int(self.state.step)
        self._stream = _stream(self.batches, self.number, self.progress.left_out)

    def advance(self, stopped: list[Reason]) -> Reason | None:
        """One step, with the validation and the checkpoint that are due after it; why it is the last, if it is."""
        plan, recorder = self.plan, self.recorder
        self.number += 1
        self.watchdog.at(f"waiting for the batch of step {self.number}")
        index, batch = _next(self._stream, self.number, plan)
        self.watchdog.at(f"in step {self.number}", together=True)
        self.state, metrics = self.step(self.state, batch)
        recorder.dispatched(self.number, index, metrics, self.flops(batch) if self.flops else 0.0)
        score, better = None, False
        if self.validate and _due(self.number, plan.validate_every, last=self.number == plan.steps):
            recorder.settle()
            self.watchdog.at(f"validating after step {self.number}", together=True)
            figures = dict(self.validate(self.state))
            score = _score(figures, plan)
            better = self.progress.add(self.number, score)
            recorder.validated(self.number, figures, better)
        reason = _why_stop(self.number, plan, self.progress, _asked(self.number, stopped), self._clock)
        due = reason is not None or better or self._clock.save_due(self.number)
        if self.outputs.checkpoints and (due or _due(self.number, plan.checkpoint_every)):
            recorder.settle()
            self.watchdog.at(f"saving after step {self.number}", together=True)
            about = {"progress": dataclasses.asdict(self.progress)}
            self.outputs.checkpoints.save(self.number, self.state, about, score=score)
            self._clock.saved()
            self._rollbacks = 0
        return reason

    def go_back(self, error: NonFiniteError) -> None:
        """To the last checkpoint, from where the batch of the error is left out; `error` itself where that fails."""
        checkpoints, self._rollbacks = self.outputs.checkpoints, self._rollbacks + 1
        if checkpoints is None or self._rollbacks > self.plan.rollbacks:
            raise error
        self.watchdog.at(f"going back from step {error.step}", together=True)
        checkpoints.wait()
        found = checkpoints.restore_latest(self._abstract)
        if found is None:
            raise error
        left_out = sorted({*self.progress.left_out, error.batch})
        self.state, self.progress = found[0], Progress(**found[1]["progress"] | {"left_out": left_out})
        self._start()
        self.recorder.forget(self.number)
        if self.outputs.reporter:
            self.outputs.reporter.say(f"{error}; back to step {self.number:,}, without that batch")


def _stream(batches: Callable[[int], Iterator[Any]], start: int, left_out: list[int]) -> Iterator[tuple[int, Any]]:
    """The batches from step `start` on, with their numbers in the plan, as if those left out were not in it."""
    first = start
    for number in sorted(left_out):
        first += number <= first
    return ((i, batch) for i, batch in enumerate(batches(first), first) if i not in left_out)


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


def _next(stream: Iterator[tuple[int, Any]], number: int, plan: Plan) -> tuple[int, Any]:
    for found in stream:
        return found
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
        if minutes <= 0 or (jax.process_count() > 1 and number % (self._plan.log_every or 10)):
            return False
        return processes.decided(time.monotonic() - since >= minutes * 60)

    def saved(self) -> None:
        self._saved = time.monotonic()


def _programs(step: Step) -> int:
    size = getattr(step, "_cache_size", None)
    return size() if size else 0


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
