"""Hooks that record a training run in an experiment tracker, whose failure does not end the training.

They need ``pip install 'jaxformer[wandb]'`` or ``pip install 'jaxformer[mlflow]'``.
"""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Mapping

from jaxformer.errors import ConfigError
from jaxformer.files import write_text
from jaxformer.training.hooks import Hook
from jaxformer.training.phase_timer import FINISHED

logger = logging.getLogger(__name__)

FILE = "tracker.json"
"""The file in a run directory that holds the tracker's identifier of the run, and the folder of its last start."""

FOLDER = "folder"
"""The name of that folder in the file, beside the names of trackers."""


class Tracker(Hook):
    """The base class of hooks for trackers: `write` records every `every`-th step, and each validation."""

    optional = True

    def __init__(self, every: int, identifier: str):
        self._every, self.identifier = every, identifier

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        if step % self._every == 0:
            self.write(step, {f"train/{name}": value for name, value in metrics.items()})

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        self.write(step, {f"validation/{name}": value for name, value in metrics.items()})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Records values of a step."""


class WandbHook(Tracker):
    """Records the metrics of steps and validations in a Weights & Biases run, whose summary has the best validation.

    Resumed training continues the same run if `options` has its ``id`` and ``resume="allow"``.

    Args:
      every: the number of steps between records.
      options: arguments of ``wandb.init``, such as ``project="translation"`` or ``mode="offline"``.
    """

    def __init__(self, *, every: int = 10, **options: object):
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(**options)
        super().__init__(every, str(self._run.id))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        super().validated(step, metrics, better)
        if better:
            self._run.summary.update({f"best/{name}": value for name, value in metrics.items()} | {"best/step": step})

    def ended(self, step: int, reason: str) -> None:
        self._run.summary.update({"ended": reason, "last_step": step})
        self._run.finish(exit_code=int(reason not in FINISHED))


class MlflowHook(Tracker):
    """Records the metrics of steps and validations in an MLflow run.

    Resumed training continues the same run if `options` has its ``run_id``.

    Args:
      every: the number of steps between records.
      tracking_uri: the server or folder of the records; by default, MLflow chooses.
      options: arguments of ``mlflow.start_run``, such as ``run_name="en-de"``.
    """

    def __init__(self, *, every: int = 10, tracking_uri: str | None = None, **options: object):
        import mlflow  # pyright: ignore[reportMissingImports]

        if tracking_uri is not None:
            mlflow.set_tracking_uri(tracking_uri)
        self._client = mlflow
        super().__init__(every, str(mlflow.start_run(**options).info.run_id))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._client.log_metrics(dict(values), step=step, run_id=self.identifier)

    def ended(self, step: int, reason: str) -> None:
        self._client.set_tags({"ended": reason, "last_step": str(step)})
        self._client.end_run("FINISHED" if reason in FINISHED else "FAILED")


def tracker(name: str, out: pathlib.Path, *, resumed: bool = False) -> list[Tracker]:
    """Returns the hook of a tracker, for a run named after the directory `out`.

    The tracker's identifier of the run is saved in `out`, so that resumed training continues the same run, also if its
    folder has moved. If that file is damaged, or `out` is a copy of a run that is still there, a warning says that the
    tracker begins another one.

    Args:
      resumed: a tracker that cannot be reached is a warning, and there is no hook: a restart at night must train.

    Raises:
      ConfigError: the tracker cannot be reached, and training is not `resumed`.
    """
    path, known = out / FILE, {}
    try:
        if path.exists():
            known = _read(path)
            if (original := _original(known, out)) is not None:
                logger.warning("%s is a copy of %s: the tracker begins another record of this run", out, original)
                known = {}
    except (AttributeError, OSError, RecursionError, ValueError):
        logger.warning("%s is damaged: the tracker begins another record of this run", path)
    try:
        if name == "wandb":
            hook = WandbHook(id=known.get(name), resume="allow", name=out.name)
        else:
            hook = MlflowHook(run_id=known.get(name), run_name=out.name)
    except Exception as error:  # the libraries raise many types of error
        problem = f"train.log_to {name}: the tracker cannot begin: {type(error).__name__}: {error}".splitlines()[0]
        if not resumed:
            raise ConfigError(f"{problem}; without this setting, log.jsonl has all metrics") from error
        logger.warning("%s; training goes on without it", problem)
        return []
    write_text(path, json.dumps(known | {name: hook.identifier, FOLDER: str(out.resolve())}) + "\n")
    return [hook]


def _read(path: pathlib.Path) -> dict[str, str]:
    return {str(each): str(identifier) for each, identifier in json.loads(path.read_text()).items()}


def _original(known: Mapping[str, str], out: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder whose copy `out` is: it is still there, with the same records; None without one."""
    folder = pathlib.Path(known.get(FOLDER, out))
    if not (folder / FILE).exists() or folder.samefile(out):  # a run that has moved keeps its records
        return None
    theirs = _read(folder / FILE)
    return folder if any(theirs.get(name) == known[name] for name in known if name != FOLDER) else None
