"""The training loop: steps, validation and checkpoints, independent of any task."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import jax

from jaxformer.errors import ConfigError
from jaxformer.multihost import processes
from jaxformer.multihost.processes import first_request, stop_requests
from jaxformer.signals import StopRequest
from jaxformer.training.checkpoint import CheckpointError, Checkpoints, later_steps
from jaxformer.training.config import TrainConfig
from jaxformer.training.hooks import Hook
from jaxformer.training.phase_timer import PhaseTimer
from jaxformer.training.recorder import Dispatched, NonFiniteError, Recorder
from jaxformer.training.state import TrainState, Tree
from jaxformer.training.step import Programs, TrainStep

Reason = Literal["done", "patience", "time"] | StopRequest
Batches = Callable[[int], Iterator[Tree]]


@dataclasses.dataclass
class Progress:
    """The progress of a run beyond its training state; saved with each checkpoint, so that runs can resume."""

    best_score: float = math.inf  # lower is better: a metric to maximize is negated
    best_step: int = 0
    validations_since_best: int = 0
    left_out: list[int] = dataclasses.field(default_factory=list)
    """Batches, by their number in the batch plan, that are skipped because their loss or gradient was not finite."""

    def add(self, step: int, score: float) -> bool:
        """Adds the score of a validation; returns True if it is the best so far."""
        if score < self.best_score:
            self.best_score, self.best_step, self.validations_since_best = score, step, 0
            return True
        self.validations_since_best += 1
        return False


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of training.

    `programs` is the number of compiled training steps, one for each batch shape; `skipped` is the number of updates
    that this process skipped because they were not finite.
    """

    state: TrainState
    reason: Reason
    progress: Progress
    programs: int
    skipped: int = 0


def fit(
    step: TrainStep,
    state: TrainState,
    batches: Batches,
    *,
    config: TrainConfig,
    validate: Callable[[TrainState], Mapping[str, float]] | None = None,
    maximize: bool = False,
    flops: Callable[[Tree], float] = lambda batch: 0.0,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
    hooks: Sequence[Hook] = (),
) -> Result:
    """Trains until `config.steps`, until patience or time runs out, or until SIGTERM or Ctrl-C.

    A run that was stopped, saved and restored continues as if it had never stopped, because `batches` can start at any
    step. The metrics of step n are read after step n + 1 has been dispatched, so the device never waits for the host.

    Args:
      batches: a function from a step to an iterator over the batches from that step on, such as
        ``lambda start: itertools.islice(itertools.cycle(batches), start, None)`` for a list that is repeated.
      validate: a function from a state to metrics, including `config.metric`.
      maximize: True if a higher `config.metric` is better, as with BLEU.
      flops: a function from a batch to the model's FLOPs in a step, for model FLOP utilization; 0 if unknown.
      checkpoints: where checkpoints are written, and read to go back.
      progress: the progress of a run that is resumed.
      hooks: what records the training, called in this order and in every process: ``JsonLog(path)`` and
        ``TensorBoard(folder)`` of `training.logging`, ``Display(console)`` of `training.progress`, a `Profile`, a
        tracker, and your own. A `PhaseTimer` among them measures the time of the whole work.

    Raises:
      NonFiniteError: a loss or gradient was not finite, the step does not skip it, and no rollbacks are left.
      CheckpointError: a checkpoint could not be written, or `checkpoints` has later steps than `state`.
      OutOfMemoryError: a step needs more memory than there is.
      ConfigError: `config.metric` is not among the metrics of the validation.
      ValueError: `batches` is not a function, or the batches end before the last step.

    >>> import itertools, tempfile, jax.numpy as jnp, optax
    >>> from jaxformer import training
    >>> data, sgd = [jnp.ones(4), jnp.zeros(4)], optax.sgd(0.1)
    >>> train_step = training.make_step(lambda w, batch, key: (((w - batch) ** 2).sum(), 4.0), sgd)
    >>> def run(folder, steps):  # resumes if there is a checkpoint
    ...     state, about = training.create(lambda key: jnp.zeros(4), sgd, jax.random.key(0)), {}
    ...     with training.Checkpoints(folder) as checkpoints:
    ...         state, about = checkpoints.restore_latest(state) or (state, about)
    ...         return training.fit(
    ...             train_step,
    ...             state,
    ...             lambda start: itertools.islice(itertools.cycle(data), start, None),
    ...             config=training.TrainConfig(steps=steps, checkpoint_every=2),
    ...             checkpoints=checkpoints,
    ...             progress=training.Progress(**about.get("progress", {})),
    ...         )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run(folder, 3).state, run(folder, 5).state
    (TrainState(step=3, 4 parameters), TrainState(step=5, 4 parameters))
    """
    progress, number, target = progress or Progress(), int(state.step), _abstract(state)
    recorder = Recorder(hooks, start=number, config=config)
    run = Programs(step, recorder.timer) if isinstance(step, jax.stages.Wrapped) else step
    rollbacks, clock = 0, _Clock(config, recorder.timer)
    stream = numbered(batches, number, progress.left_out)
    reason = _first_reason(number, config, progress, checkpoints)
    with stop_requests(functools.partial(recorder.tell, Hook.say)) as requests, recorder:
        while reason is None:
            number += 1
            try:
                index, batch, waited = _next(stream, number, config, recorder)
                recorder.begin(number, "stepping")
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    state, sums = run(state, batch)
                recorder.dispatched(Dispatched(number, index, sums, flops(batch), waited))

                score, better = None, False
                if validate and _due(number, config.validate_every, last=number == config.steps):
                    recorder.begin(number, "validating")
                    metrics, score = _scored(validate(state), config.metric, maximize)
                    better = progress.add(number, score)
                    recorder.tell(Hook.validated, number, metrics, better)

                reason = _reason_to_stop(number, config, progress, first_request(number, requests), clock)

                if checkpoints and (reason or better or clock.save_due(number)):
                    recorder.begin(number, "saving")
                    checkpoints.save(number, state, {"progress": dataclasses.asdict(progress)}, score=score)
                    clock.saved()
                    recorder.saving(checkpoints.directory / str(number))
                    rollbacks = 0
            except NonFiniteError as error:
                reason, rollbacks = None, rollbacks + 1  # if a step fails while it is saved, training continues
                if rollbacks > config.rollbacks:
                    raise
                recorder.begin(error.step, "starting")
                del state  # frees its memory for the restored one
                state, progress = _last_saved(checkpoints, target, progress, error)
                number = int(state.step)
                stream = numbered(batches, number, progress.left_out)
                recorder.went_back(number, error)
        recorder.begin(number, "saving")
        if checkpoints:  # a signal must not interrupt the last save
            checkpoints.wait()
            recorder.saving(None)
        recorder.reason = reason
    return Result(state, reason, progress, len(run) if isinstance(run, Programs) else 0, recorder.skipped)


def numbered(batches: Batches, start: int, left_out: list[int]) -> Iterator[tuple[int, Tree]]:
    """Yields the batches from step `start` on with their numbers in the batch plan, except for those in `left_out`.

    Raises:
      ValueError: `batches` is not a function.
    """
    if not callable(batches):
        raise ValueError(
            "batches must be a function from a step to an iterator over the batches from that step on, such as "
            f"lambda start: itertools.islice(itertools.cycle(batches), start, None); got {type(batches).__name__}"
        )
    first = start
    for number in sorted(left_out):
        first += number <= first
    return ((index, batch) for index, batch in enumerate(batches(first), first) if index not in left_out)


def _next(
    stream: Iterator[tuple[int, Tree]], number: int, config: TrainConfig, recorder: Recorder
) -> tuple[int, Tree, float]:
    """Returns the number of the next batch in the plan, the batch, and the seconds until it came."""
    recorder.begin(number, "waiting for data")
    began = time.perf_counter()
    for index, batch in stream:
        return index, batch, time.perf_counter() - began
    raise ValueError(f"the batches ended before step {number:,}; training has {config.steps:,} steps")


def _due(number: int, every: int, *, last: bool = False) -> bool:
    return every > 0 and (number % every == 0 or last)


def _scored(metrics: Mapping[str, float], name: str, maximize: bool) -> tuple[dict[str, float], float]:
    """Returns metrics, which may be JAX arrays, as numbers, and the metric of this name as a score: lower is better."""
    if name not in metrics:
        raise ConfigError(f"the metric must be one of the validation's metrics {sorted(metrics)}, got {name!r}")
    numbers = {metric: float(value) for metric, value in metrics.items()}
    return numbers, -numbers[name] if maximize else numbers[name]


def _complete(number: int, config: TrainConfig, progress: Progress) -> Reason | None:
    if number >= config.steps:
        return "done"
    if config.patience and progress.validations_since_best >= config.patience:
        return "patience"
    return None


def _first_reason(number: int, config: TrainConfig, progress: Progress, saved: Checkpoints | None) -> Reason | None:
    """Returns the reason not to start, or None; later checkpoints are an error now, not at the first save."""
    reason = _complete(number, config, progress)
    if not reason and saved and (problem := later_steps(saved, number)):
        raise CheckpointError(f"cannot train from step {number}: {problem}")
    return reason


def _reason_to_stop(
    number: int, config: TrainConfig, progress: Progress, request: StopRequest | None, clock: _Clock
) -> Reason | None:
    """Returns the reason to stop after this step, or None; a complete run is "done" even if there was a signal."""
    return _complete(number, config, progress) or request or ("time" if clock.is_up(number) else None)


class _Clock:
    """The time limits of a training run, counted from the beginning of its work."""

    INTERVAL = 10
    """The number of steps after which several processes compare the time."""

    def __init__(self, config: TrainConfig, timer: PhaseTimer):
        self._config, self._timer, self._saved = config, timer, timer.total()

    def is_up(self, number: int) -> bool:
        return self._over(self._config.minutes, 0.0, number)

    def save_due(self, number: int) -> bool:
        over = self._over(self._config.checkpoint_minutes, self._saved, number)
        return over or _due(number, self._config.checkpoint_every)

    def _over(self, minutes: float, since: float, number: int) -> bool:
        """Returns True if this many minutes have passed since `since`.

        The clock of the first process decides, and only at some steps, because all processes wait for its decision.
        """
        if minutes <= 0 or (jax.process_count() > 1 and number % self.INTERVAL):
            return False
        return processes.broadcast(self._timer.total() - since >= minutes * 60)

    def saved(self) -> None:
        self._saved = self._timer.total()


def _last_saved(
    checkpoints: Checkpoints | None, target: TrainState, progress: Progress, error: NonFiniteError
) -> tuple[TrainState, Progress]:
    """Returns the last checkpoint, with the failed batch left out; raises the error if there is no checkpoint."""
    if checkpoints is None:
        raise error
    checkpoints.wait()
    restored = checkpoints.restore_latest(target)
    if restored is None:
        raise NonFiniteError(error.step, error.batch, error.loss, "; there is no checkpoint to go back to yet")
    state, about = restored
    left_out = sorted({*progress.left_out, error.batch})
    return state, Progress(**about.get("progress", {}) | {"left_out": left_out})  # a caller's own save has none


def _abstract(state: TrainState) -> TrainState:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None)), state)
