"""The parameters of a run, read from its checkpoints or its average."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import shlex
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from jaxformer import sharding, training
from jaxformer.axes import parameter_name
from jaxformer.errors import ConfigError, first_few
from jaxformer.modules import AttentionFunction, LoRA
from jaxformer.modules.pure import Params
from jaxformer.multihost import processes
from jaxformer.sharding import Placement
from jaxformer.tasks import registry, rundir
from jaxformer.tasks.training_setup import TrainingSetup, make_training_setup

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

REMOVAL = 0.5
"""The seconds after which a step whose removal has begun is no longer listed."""


def load_params(
    run: pathlib.Path, checkpoint: str, mesh: str, attention: AttentionFunction | None = None
) -> tuple[Params, tuple[int, ...]]:
    """Returns the parameters of a run, adapters merged into them, and their steps; see `make_training_setup`."""
    config = registry.read_config(run)
    task = registry.task_of(config)
    size = task.vocabulary(run).vocab_size
    setup = make_training_setup(task, config, size, Placement(sharding.mesh(mesh)), attention)
    params, steps = restore_params(run, setup, checkpoint)
    net = setup.network.net
    return net.merged(params) if isinstance(net, LoRA) else params, steps


def restore_params(run: pathlib.Path, setup: TrainingSetup, checkpoint: str) -> tuple[Params, tuple[int, ...]]:
    """Returns the parameters of a checkpoint of a run, and their steps; see `runner.load`."""
    abstract = setup.abstract_state()
    if (folder := _of_parameters(run, checkpoint)) is not None:
        latest = lambda saved, _: saved.restore_latest(abstract.params)
        _, restored = read_steps(run, folder, training.Checkpoints.steps, latest)
        if restored is None:
            if checkpoint == "average":
                raise no_average(run)
            raise _no_checkpoint(folder)
        if rundir.is_pretrained(run):  # a training would not have saved them
            _report_nonfinite(run, restored[0])
        return restored[0], tuple(restored[1].get("averaged", ()))
    chosen = lambda saved: choose_step(saved, checkpoint)
    step, params = read_steps(run, None, chosen, lambda saved, step: saved.restore_params(step, abstract.params))
    return params, (step,)


def read_steps(
    run: pathlib.Path,
    folder: pathlib.Path | None,
    choose: Callable[[training.Checkpoints], S],
    read: Callable[[training.Checkpoints, S], T],
) -> tuple[S, T]:
    """Returns the chosen steps and what was read of them, from a folder of a run or from its checkpoints (None).

    A training removes old steps. If one of those chosen disappears before it is read, the steps are listed again.

    Raises:
      CheckpointError: they cannot be read, and the choice is still the same.
    """
    while True:
        with _open(run, folder) as saved:
            chosen = choose(saved)
            try:
                return chosen, read(saved, chosen)
            except training.OtherModelError:
                raise
            except training.CheckpointError:
                time.sleep(REMOVAL)
                with _open(run, folder) as again:
                    if processes.all_true(choose(again) == chosen):
                        raise


def _open(run: pathlib.Path, folder: pathlib.Path | None) -> training.Checkpoints:
    if folder is None:
        return open_checkpoints(run)
    return training.Checkpoints(folder, fingerprint=rundir.run_fingerprint(run))


def _report_nonfinite(run: pathlib.Path, params: Params) -> None:
    """Warns about parameters of NaN or infinity, once."""
    named = jax.tree_util.tree_leaves_with_path(params)
    finite = jax.jit(lambda leaves: [jnp.isfinite(x).all() for x in leaves])([x for _, x in named])
    if names := [parameter_name(path) for (path, _), ok in zip(named, finite, strict=True) if not ok]:
        few = first_few(names, 3)
        logger.warning("%s has parameters of NaN or infinity, whose results mean nothing: %s", run, few)


def check(run: pathlib.Path, checkpoint: str) -> None:
    """Checks that a run has a checkpoint of this name.

    Raises:
      ConfigError: there is no such checkpoint.
      CheckpointError: there is no checkpoint yet.
    """
    if _of_parameters(run, checkpoint) is None:
        with open_checkpoints(run) as saved:
            choose_step(saved, checkpoint)


def _of_parameters(run: pathlib.Path, checkpoint: str) -> pathlib.Path | None:
    """Returns the folder of this checkpoint if it holds parameters and no optimizer, else None.

    Raises:
      ConfigError: there is no such checkpoint.
    """
    if rundir.is_pretrained(run):
        if checkpoint not in ("best", "last"):
            raise ConfigError(f"no checkpoint {checkpoint!r}: {_converted(run)}; leave out the checkpoint")
        return run / rundir.PRETRAINED
    if checkpoint != "average":
        return None
    if not (run / "average").is_dir():  # opening it would create it
        raise no_average(run)
    return run / "average"


def open_checkpoints(run: pathlib.Path) -> training.Checkpoints:
    """Opens the checkpoints of a run for reading, without creating their folder."""
    folder = run / "checkpoints"
    if rundir.is_pretrained(run):
        raise ConfigError(_converted(run))
    if not folder.is_dir():
        raise _no_checkpoint(folder)
    return _open(run, folder)


def _converted(run: pathlib.Path) -> str:
    return f"{run} is a converted model, which has one set of parameters and no checkpoints"


def _no_checkpoint(folder: pathlib.Path) -> training.CheckpointError:
    return training.CheckpointError(f"no checkpoint in {folder} yet")


def choose_step(saved: training.Checkpoints, checkpoint: str) -> int:
    """Returns the step of the checkpoint "best", "last" or a number; without scores, the best is the last.

    Raises:
      CheckpointError: there is no checkpoint yet.
      ConfigError: there is no such checkpoint.
    """
    steps = saved.steps()
    if not steps:
        raise _no_checkpoint(saved.directory)
    if checkpoint == "last":
        return steps[-1]
    if checkpoint == "best":
        best = saved.best_step()
        return steps[-1] if best is None else best
    if checkpoint.isdecimal() and int(checkpoint) in steps:
        return int(checkpoint)
    raise ConfigError(f"no checkpoint {checkpoint!r}; there are best, last, average and steps {steps}")


def parameters_alone(state: training.TrainState) -> training.TrainState:
    """Returns an abstract state with only the parameters to read: neither moments nor the moving average."""
    left_out = lambda part: jax.tree.map(lambda _: ..., part)
    return dataclasses.replace(state, optimizer=left_out(state.optimizer), ema_params=left_out(state.ema_params))


def no_average(run: pathlib.Path) -> ConfigError:
    """Returns the error to raise for a run without averaged parameters."""
    return ConfigError(f"{run} has no averaged parameters; run `jaxformer average {shlex.quote(str(run))}` first")
