"""The experiment tracker chosen by a setting; the hooks of `wandb_hook` and `mlflow_hook` take more options."""

from __future__ import annotations

import json
import pathlib

from jaxformer.files import write_text
from jaxformer.training.mlflow_hook import MlflowHook
from jaxformer.training.wandb_hook import WandbHook

FILE = "tracker.json"
"""The file in a run directory that holds the tracker's identifier of the run."""


def tracker(name: str, out: pathlib.Path) -> WandbHook | MlflowHook:
    """Returns the hook of a tracker, for a run named after the directory `out`.

    The tracker's identifier of the run is saved in `out`, so that resumed training continues the same run.
    """
    path = out / FILE
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    hook = (
        WandbHook(id=known.get(name), resume="allow", name=out.name)
        if name == "wandb"
        else MlflowHook(run_id=known.get(name), run_name=out.name)
    )
    write_text(path, json.dumps(known | {name: hook.identifier}) + "\n")
    return hook
