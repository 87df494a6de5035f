"""The recorder of a training, which reads the metrics of its steps and tells its hooks."""

from __future__ import annotations

import contextlib
import logging
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, NamedTuple, ParamSpec

import jax

from jaxformer import hardware
from jaxformer.errors import JaxformerError
from jaxformer.training.config import TrainConfig
from jaxformer.training.hooks import Hook, Means, Part, Start
from jaxformer.training.phase_timer import PhaseTimer
from jaxformer.training.step import Metrics
from jaxformer.training.watchdog import Watchdog

logger = logging.getLogger(__name__)

P = ParamSpec("P")

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


class Dispatched(NamedTuple):
    """A step that a device may still run, with the number of its batch in the plan and the seconds until that came."""

    number: int
    batch: int
    metrics: Metrics
    flops: float
    data_wait: float


class Recorder:
    """Reads each step's metrics one step later, and passes them and all other events of a training to its hooks.

    A `PhaseTimer` among the hooks is the `timer` of the training.
    """

    def __init__(self, hooks: Sequence[Hook], *, start: int, config: TrainConfig):
        self.timer = next((hook for hook in hooks if isinstance(hook, PhaseTimer)), PhaseTimer())
        others = (hook for hook in hooks if hook is not self.timer)
        self._hooks = [self.timer, Watchdog(config.stall_minutes * 60), *others]
        self._failed = set[int]()
        self._every, self._steps = config.log_every, config.steps
        self.reason, self.skipped, self._last = "", 0, start
        self._waiting: Dispatched | None = None
        self._ended: float | None = None
        self._saving: pathlib.Path | None = None
        self._mark = self.timer.stepping()
        self._restart()

    def _restart(self) -> None:
        """Begins other means."""
        self._since, self._loss, self._tokens, self._flops = self._mark, 0.0, 0.0, 0.0

    def __enter__(self) -> Recorder:
        with contextlib.ExitStack() as stack:
            stack.push(self)  # if a hook cannot start, all end
            self.tell(Hook.started, Start(self._last, self._steps, self.timer, self.settle))
            stack.pop_all()
        return self

    def begin(self, number: int, part: Part) -> None:
        """Passes on the next action, such as the wait for the batch of step `number`; see `Hook.begins`."""
        if part in ("validating", "saving"):
            self.settle()
        self.look()
        self.tell(Hook.begins, number, part)

    def dispatched(self, step: Dispatched) -> None:
        """Receives a step, and records the metrics of the step before."""
        self.settle(step.metrics)
        self._waiting, self._ended = step, None
        self.look()

    def look(self) -> None:
        """Records the time if the last step has ended; its metrics are read after the next step is dispatched."""
        if self._ended is None and self._waiting and _ready(self._waiting.metrics):
            self._ended = self.timer.stepping()

    def settle(self, following: Metrics | None = None) -> None:
        """Reads and records the metrics of the last step.

        If the `following` step has also ended, each of the two is assigned half of the time since the step before.
        """
        if self._waiting is None:
            return
        step, self._waiting = self._waiting, None
        if arrays := [f"{name} {list(x.shape)}" for name, x in step.metrics.items() if x.ndim]:
            raise ValueError(f"training logs metrics that are scalars, got {', '.join(arrays)}")
        metrics = {name: float(value) for name, value in jax.device_get(step.metrics).items()}
        if self._ended is None:
            self._ended = self.timer.stepping()
            if following and _ready(following):
                self._ended = (self._mark + self._ended) / 2
        seconds, self._mark = self._ended - self._mark, self._ended
        self._record(step, metrics, seconds)

    def _record(self, step: Dispatched, metrics: dict[str, float], seconds: float) -> None:
        total, count = metrics.pop("loss_sum"), metrics.pop("count")
        loss = total / (count if count > 0 else 1.0)
        finite = metrics.pop("finite", math.isfinite(loss))  # a custom step may not report it
        rate = count / max(seconds, 1e-9)
        measured = dict(zip(MEASURED, (seconds, rate, step.data_wait, device_memory()), strict=True))
        if taken := sorted(metrics.keys() & {"step", "loss", "tokens", *measured}):
            raise ValueError(f"training itself logs {', '.join(taken)}; give the loss's metric another name")
        values = {"loss": loss, "tokens": count, **metrics, **measured}
        self._flops += step.flops
        if finite:
            self._loss, self._tokens = self._loss + total, self._tokens + count
        failed = not finite and not metrics.get("skipped")
        if not failed and ((self._every and step.number % self._every == 0) or step.number == self._steps):
            self._report(step.number, values)
        self.tell(Hook.step, step.number, values)
        self._last = step.number
        if failed:
            raise NonFiniteError(step.number, step.batch, loss)
        if not finite:
            self.skipped += 1

    def _report(self, number: int, values: Mapping[str, float]) -> None:
        seconds = max(self._mark - self._since, 1e-9)
        loss = self._loss / self._tokens if self._tokens > 0 else math.nan
        means = Means(loss, self._tokens / seconds, self._flops / seconds)
        self._restart()
        self.tell(Hook.reported, number, values, means)

    def saving(self, directory: pathlib.Path | None) -> None:
        """Receives the folder that is being written, and passes on the save before it, which is complete."""
        saved, self._saving = self._saving, directory
        if saved:
            self.tell(Hook.saved, int(saved.name), saved)

    def went_back(self, number: int, error: NonFiniteError) -> None:
        """Goes back to the end of step `number`."""
        self._waiting, self._last, self._mark = None, number, self.timer.stepping()
        self._restart()
        self.tell(Hook.went_back, number, str(error))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Passes on the end, to every hook; the exit code of an `error` counts, so it hides those of hooks."""
        if error is not None:
            self.reason = f"{type(error).__name__}: {error}".strip(": ")
        failure = None
        for hook in self._hooks:
            try:
                self._call(hook, Hook.ended, self._last, self.reason)
            except Exception as problem:
                if error or failure:
                    logger.warning("at the end of training: %s: %s", type(problem).__name__, problem)
                else:
                    failure = problem
        if failure:
            raise failure

    def tell(self, event: Callable[Concatenate[Hook, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls a method of each hook, such as `Hook.say`, except of those that have failed."""
        for hook in self._hooks:
            if id(hook) not in self._failed:
                self._call(hook, event, *args, **kwargs)

    def _call(self, hook: Hook, event: Callable[Concatenate[Hook, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls a method of a hook; the first exception of an optional hook is a warning."""
        try:
            getattr(hook, event.__name__)(*args, **kwargs)
        except Exception as error:
            if not hook.optional:
                raise
            if id(hook) not in self._failed:
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
                logger.warning("%s failed, and training goes on without it: %s", type(hook).__name__, problem)
            self._failed.add(id(hook))


def _ready(metrics: Metrics) -> bool:
    """Returns True if a step has ended."""
    return all(x.is_ready() for x in metrics.values())  # pyright: ignore[reportAttributeAccessIssue]


def device_memory() -> float:
    """Returns the peak bytes held by a device of this process so far; on a CPU, by the process."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [float(one[name]) for one in stats for name in ("peak_bytes_in_use", "bytes_in_use") if name in one]
    return max(peaks, default=float(hardware.peak_memory()))
