"""Resuming a run with other settings, as long as they change no completed step."""

from __future__ import annotations

import pathlib

import numpy as np

from jaxformer import training
from jaxformer.config import comparable, flat
from jaxformer.errors import ConfigError
from jaxformer.multihost import processes
from jaxformer.tasks import rundir
from jaxformer.tasks.base import Say
from jaxformer.tasks.config import TaskConfig


def change_settings(out: pathlib.Path, saved: TaskConfig, config: TaskConfig, done: int, say: Say) -> None:
    """Applies the settings of `config` to a run with `done` steps: reports the changes, and saves config.json.

    Raises:
      ConfigError: a completed step would have had another learning rate or other weights of corpora, or fewer steps are
        wanted than are done.
    """
    if config.train.steps < done:
        raise ConfigError(f"{out} has done {done:,} steps, more than the {config.train.steps:,} of train.steps")
    old, new = (
        np.asarray(training.make_schedule(c.optimizer, steps=c.train.steps)(np.arange(done))) for c in (saved, config)
    )
    if (differs := np.flatnonzero(old != new)).size:
        first = differs[0]
        raise ConfigError(
            f"{out} has done {done:,} steps, but with these settings the learning rate of step {first + 1:,} would "
            f"have been {new[first]:.3g}, not {old[first]:.3g}"
        )
    config.check_resumed(saved, done)
    before, after = flat(comparable(saved)), flat(comparable(config))
    changes = [f"{name} is now {after[name]}, was {before[name]}" for name in after if after[name] != before[name]]
    for change in changes:
        say(change)
    if saved != config and processes.is_first():  # settings of the place, which are not reported, are saved too
        rundir.write_config(out, config.task, config)
