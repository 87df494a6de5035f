"""A hook that records a training run in Weights & Biases (``pip install 'jaxformer[wandb]'``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxformer.training.hooks import Hook
from jaxformer.training.phase_timer import FINISHED


class WandbHook(Hook):
    """Records the metrics of steps and validations in a Weights & Biases run.

    Resumed training continues the same run if `options` has its ``id`` and ``resume="allow"``. A failure of
    the tracker does not end the training.

    Args:
      every: the number of steps between records.
      options: arguments of ``wandb.init``, such as ``project="translation"`` or ``mode="offline"``.
    """

    optional = True

    def __init__(self, *, every: int = 10, **options: Any):
        import wandb  # pyright: ignore[reportMissingImports]

        self._run, self._every = wandb.init(**options), every

    @property
    def identifier(self) -> str:
        """The identifier of the run in Weights & Biases."""
        return str(self._run.id)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records every `every`-th step."""
        if step % self._every == 0:
            self._run.log({f"train/{name}": value for name, value in metrics.items()}, step=step)

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        """Records a validation; the summary has the best one."""
        values = {f"validation/{name}": value for name, value in metrics.items()}
        self._run.log(values, step=step)
        if better:
            self._run.summary.update({f"best/{name}": value for name, value in metrics.items()} | {"best/step": step})

    def ended(self, step: int, reason: str) -> None:
        """Records the reason, and ends the run."""
        self._run.summary.update({"ended": reason, "last_step": step})
        self._run.finish(exit_code=0 if reason in FINISHED else 1)
