"""Recording of training steps in logs, on screen and by hooks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxformer.errors import JaxformerError
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.config import TrainConfig
from jaxformer.training.hooks import Hook
from jaxformer.training.logging import JsonLog, TensorBoard
from jaxformer.training.phase_timer import PhaseTimer, duration
from jaxformer.training.profile import Profile
from jaxformer.training.progress import Reporter
from jaxformer.training.step import Metrics

logger = logging.getLogger(__name__)

MEASURED = ("seconds", "tokens_per_second", "data_wait", "device_memory")
"""The logged metrics of a step that vary from run to run: time, speed, the wait for the batch, and the peak bytes held
by a device of this process so far."""


class NonFiniteError(JaxformerError, ArithmeticError):
    """The loss or a gradient is not finite; the message names the step, and the batch by its number in the plan.

    A restart would compute the same result again.
    """

    exit_code = 2

    def __init__(self, step: int, batch: int, loss: float, more: str = ""):
        super().__init__(f"step {step}, batch {batch}: the loss ({loss}) or a gradient is not finite{more}")
        self.step, self.batch, self.loss = step, batch, loss


@dataclasses.dataclass
class Outputs:
    """The outputs of a training run, for `fit`; any of them may be missing."""

    checkpoints: Checkpoints | None = None
    log: JsonLog | None = None
    board: TensorBoard | None = None
    reporter: Reporter | None = None
    peak_flops: float | None = None
    label_smoothing: float = 0.0
    """The label smoothing of the training loss, which the log states in each step; validations have none."""
    hooks: Sequence[Hook] = ()
    profile: Profile | None = None
    timer: PhaseTimer = dataclasses.field(default_factory=PhaseTimer)

    def say(self, text: str) -> None:
        """Shows a line, if there is a reporter."""
        if self.reporter:
            self.reporter.say(text)

    def close(self) -> None:
        """Closes the log, the board and the reporter, each even if another cannot be closed."""
        with contextlib.ExitStack() as stack:
            for output in filter(None, (self.reporter, self.board, self.log)):
                stack.callback(output.close)


class Recorder:
    """Reads each step's metrics one step later, and passes them to logs, the screen and hooks."""

    def __init__(self, outputs: Outputs, *, start: int, config: TrainConfig):
        self._outputs, self._start, self._last = outputs, start, start
        self.timer, self.reason = outputs.timer, ""
        self._steps, self._every = config.steps, config.log_every
        self.skipped, self._undone = 0, 0
        self._waiting: tuple[int, int, Metrics, float, float] | None = None
        self._ended: float | None = None
        self._unsaved: int | None = None
        self._has_predicted = False
        self._failed = set[int]()
        self._mark = outputs.timer.stepping()
        self._new_window()

    def _new_window(self) -> None:
        self._since, self._loss, self._tokens, self._flops = self._outputs.timer.stepping(), 0.0, 0.0, 0.0

    def dispatched(self, number: int, batch: int, metrics: Metrics, flops: float, data_wait: float) -> None:
        """Receives the metrics of a step on batch `batch` of the plan, and records the metrics of the step before."""
        self.catch_up(metrics)
        self._waiting, self._ended = (number, batch, metrics, flops, data_wait), None
        self.look()

    def look(self) -> None:
        """Records the time if the last step has ended; its metrics are read after the next step is dispatched."""
        if self._ended is None and self._waiting and _ready(self._waiting[2]):
            self._ended = self.timer.stepping()

    def catch_up(self, following: Metrics | None = None) -> None:
        """Records the pending metrics, and flushes the log, so that they are not lost if the process is killed.

        If the `following` step has also ended, each of the two is assigned half of the time since the step before.
        """
        if self._waiting is None:
            return
        number, batch, metrics, flops, data_wait = self._waiting
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if self._ended is None:
            self._ended = now = self.timer.stepping()
            if following and _ready(following):
                self._ended = (self._mark + now) / 2
        self._waiting = None
        self._record(number, batch, values, flops, data_wait)
        if self._outputs.log:
            self._outputs.log.flush()

    def went_back(self, number: int, error: NonFiniteError) -> None:
        """Goes back to the end of step `number`: removes later lines of the logs, and reports the error."""
        self._waiting = None
        if self._outputs.log:
            self._outputs.log.rewind(number)
        if self._outputs.board:
            self._outputs.board.rewind(number)
        self._undone += self._last - number
        self._last = number
        self._new_window()
        self._outputs.say(f"{error}; back to step {number:,}, without that batch")

    def settle(self) -> None:
        """Catches up, and flushes TensorBoard: a kill after a checkpoint must not lose the steps that led to it."""
        self.catch_up()
        if self._outputs.board:
            self._outputs.board.flush()

    def profile(self, number: int) -> None:
        """Starts or stops the trace before step `number`, if it is due."""
        profile = self._outputs.profile
        if profile and profile.due(number):
            self.settle()
            profile.before(number)

    def validated(self, number: int, metrics: Mapping[str, float], better: bool) -> None:
        """Records a validation."""
        out = self._outputs
        if out.log:
            out.log.write(number, **{f"validation_{name}": value for name, value in metrics.items()})
            out.log.flush()
        if out.board:
            out.board.write(number, **{f"validation/{name}": value for name, value in metrics.items()})
        text = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        out.say(f"step {number:,}: validation {text}{' (best so far)' if better else ''}")
        self._tell("validated", number, metrics, better)
        out.timer.save(step=number)

    def saved(self, number: int) -> None:
        """Records that step `number` is being saved, and that the save before it is completely written."""
        out = self._outputs
        if self._unsaved is not None and out.checkpoints:
            self._tell("saved", self._unsaved, out.checkpoints.directory / str(self._unsaved))
        self._unsaved = number
        out.timer.save(step=number)

    def _tell(self, event: str, *arguments: Any) -> None:
        """Calls a method of each hook, except of those that have failed."""
        for hook in self._outputs.hooks:
            if id(hook) not in self._failed:
                self._call(hook, event, *arguments)

    def _call(self, hook: Hook, event: str, *arguments: Any) -> None:
        """Calls a method of a hook; the first exception of an optional hook is a warning."""
        try:
            getattr(hook, event)(*arguments)
        except Exception as error:
            if not getattr(hook, "optional", False):
                raise
            if id(hook) not in self._failed:
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
                logger.warning("%s failed, and training goes on without it: %s", type(hook).__name__, problem)
            self._failed.add(id(hook))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Records the end; all checkpoints have been written, unless the training has failed."""
        out = self._outputs
        if error is not None:
            self.reason = f"{type(error).__name__}: {error}".strip(": ")
        ends: list[Callable[[], None]] = [out.profile.close] if out.profile else []
        if error is None and self._unsaved is not None:
            ends.append(functools.partial(self.saved, self._unsaved))
        ends.append(functools.partial(out.timer.save, step=self._last, ended=self.reason))
        told = (functools.partial(self._call, hook, "ended", self._last, self.reason) for hook in out.hooks)
        _call_all([*ends, *told], error)

    def _record(self, number: int, batch: int, metrics: dict[str, float], flops: float, data_wait: float) -> None:
        out = self._outputs
        total, count = metrics.pop("loss_sum"), metrics.pop("count")
        loss = total / (count if count > 0 else 1.0)
        finite = metrics.pop("finite", math.isfinite(loss))  # a custom step may not report it
        assert self._ended is not None
        seconds, self._mark = self._ended - self._mark, self._ended
        rate = count / max(seconds, 1e-9)
        measured = dict(zip(MEASURED, (seconds, rate, data_wait, device_memory()), strict=True))
        if taken := sorted(metrics.keys() & {"step", "loss", "tokens", *measured}):
            raise ValueError(f"training itself logs {', '.join(taken)}; give the loss's metric another name")
        values = {"loss": loss, "tokens": count, **metrics, **measured}
        if out.log:
            smoothed = {"label_smoothing": out.label_smoothing} if out.label_smoothing else {}
            out.log.write(number, **values, **smoothed)
        self._tell("step", number, values)
        self._last = number
        if finite:
            self._loss, self._tokens = self._loss + total, self._tokens + count
        else:
            if not metrics.get("skipped"):
                raise NonFiniteError(number, batch, loss)
            self.skipped += 1
            out.say(f"step {number:,}: not finite, skipped ({self.skipped} so far)")
        self._flops += flops
        if (self._every and number % self._every == 0) or number == self._steps:
            self._report(number, metrics | measured)
        self._tell_time(number)

    def _report(self, number: int, metrics: Mapping[str, float]) -> None:
        """Reports means over the steps since the last report: losses of short and long sequences differ a lot."""
        out = self._outputs
        seconds = max(out.timer.stepping() - self._since, 1e-9)
        loss = self._loss / self._tokens if self._tokens > 0 else math.nan  # all steps may have been skipped
        rate, speed = self._tokens / seconds, self._flops / seconds
        self._new_window()
        if out.board:
            out.board.write(number, **{**metrics, "train/loss": loss, "train/tokens_per_second": rate})
        if out.reporter:
            utilization = speed / out.peak_flops if out.peak_flops and speed else None
            out.reporter.update(number, loss=loss, tokens_per_second=rate, utilization=utilization)

    def _tell_time(self, number: int) -> None:
        """Shows the time left, and once, after three steps or ten seconds, a line that predicts it."""
        out, done = self._outputs, number - self._start + self._undone
        if not out.reporter or done < 1:
            return
        worked = out.timer.working()
        steps = self._steps - number
        left = worked / done * steps
        if steps and not self._has_predicted and (done >= 3 or worked > 10):
            self._has_predicted = True
            out.say(
                f"{steps:,} more {'step takes' if steps == 1 else 'steps take'} about {duration(left)} on this "
                f"machine, at {worked / done:.2g} s each"
            )
        out.reporter.tick(number, left)


def _call_all(ends: Sequence[Callable[[], None]], error: BaseException | None) -> None:
    """Calls every function, then raises the first exception; after an `error`, whose exit code counts, only logs it."""
    failure = None
    for end in ends:
        try:
            end()
        except Exception as problem:
            if error or failure:
                logger.warning("at the end of training: %s: %s", type(problem).__name__, problem)
            else:
                failure = problem
    if failure:
        raise failure


def _ready(metrics: Mapping[str, Any]) -> bool:
    """Returns True if a step has ended."""
    return all(x.is_ready() for x in metrics.values())


def device_memory() -> float:
    """Returns the peak bytes held by a device of this process so far; on a CPU, by the process."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [float(one[name]) for one in stats for name in ("peak_bytes_in_use", "bytes_in_use") if name in one]
    unit = 1 if sys.platform == "darwin" else 1024
    return max(peaks) if peaks else float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
