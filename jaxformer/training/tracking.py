"""The experiment tracker chosen by a setting; the hooks of `wandb_hook` and `mlflow_hook` take more options."""

from __future__ import annotations

import json
import logging
import pathlib

from jaxformer.errors import ConfigError
from jaxformer.files import write_text
from jaxformer.training.hooks import Hook
from jaxformer.training.mlflow_hook import MlflowHook
from jaxformer.training.wandb_hook import WandbHook

logger = logging.getLogger(__name__)

FILE = "tracker.json"
"""The file in a run directory that holds the tracker's identifier of the run."""


def tracker(name: str, out: pathlib.Path, *, resumed: bool = False) -> Hook:
    """Returns the hook of a tracker, for a run named after the directory `out`.

    The tracker's identifier of the run is saved in `out`, so that resumed training continues the same run. If that file
    is damaged, a warning says that the tracker begins another one.

    Args:
      resumed: a tracker that cannot be reached is a warning, and nothing is recorded: a restart at night must train.

    Raises:
      ConfigError: the tracker cannot be reached, and training is not `resumed`.
    """
    known = _identifiers(path := out / FILE)
    try:
        hook = (
            WandbHook(id=known.get(name), resume="allow", name=out.name)
            if name == "wandb"
            else MlflowHook(run_id=known.get(name), run_name=out.name)
        )
    except Exception as error:  # the libraries raise many types of error
        problem = f"train.log_to {name}: the tracker cannot begin: {type(error).__name__}: {error}".splitlines()[0]
        if not resumed:
            raise ConfigError(f"{problem}; without this setting, log.jsonl has all metrics") from error
        logger.warning("%s; training goes on without it", problem)
        return Hook()
    write_text(path, json.dumps(known | {name: hook.identifier}) + "\n")
    return hook


def _identifiers(path: pathlib.Path) -> dict[str, str]:
    """Returns the identifiers in a file by tracker; none, with a warning, if it is damaged."""
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        known = None
    if isinstance(known, dict):
        return {name: value for name, value in known.items() if isinstance(value, str)}
    logger.warning("%s is damaged: the tracker begins another record of this run", path)
    return {}
