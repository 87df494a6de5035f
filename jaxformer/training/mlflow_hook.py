"""A hook that records a training run in MLflow (``pip install 'jaxformer[mlflow]'``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxformer.training.hooks import Hook
from jaxformer.training.phase_timer import FINISHED


class MlflowHook(Hook):
    """Records the metrics of steps and validations in an MLflow run.

    Resumed training continues the same run if `options` has its ``run_id``. A failure of the tracker does not end the
    training.

    Args:
      every: the number of steps between records.
      tracking_uri: the server or folder of the records; by default, MLflow chooses.
      options: arguments of ``mlflow.start_run``, such as ``run_name="en-de"``.
    """

    optional = True

    def __init__(self, *, every: int = 10, tracking_uri: str | None = None, **options: Any):
        import mlflow  # pyright: ignore[reportMissingImports]

        if tracking_uri is not None:
            mlflow.set_tracking_uri(tracking_uri)
        self._client, self._every = mlflow, every
        self._run = mlflow.start_run(**options)

    @property
    def identifier(self) -> str:
        """MLflow's identifier of the run."""
        return str(self._run.info.run_id)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records every `every`-th step."""
        if step % self._every == 0:
            self._log(step, {f"train/{name}": value for name, value in metrics.items()})

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        """Records a validation."""
        self._log(step, {f"validation/{name}": value for name, value in metrics.items()})

    def ended(self, step: int, reason: str) -> None:
        """Records the reason, and ends the run."""
        self._client.set_tags({"ended": reason, "last_step": str(step)})
        self._client.end_run("FINISHED" if reason in FINISHED else "FAILED")

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        self._client.log_metrics(dict(values), step=step, run_id=self._run.info.run_id)
