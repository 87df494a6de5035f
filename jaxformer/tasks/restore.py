"""Runs in use: the parameters of a run, read from its checkpoints or its average, and the predictor with them."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxformer import sharding, training
from jaxformer.axes import parameter_name
from jaxformer.config import changed
from jaxformer.errors import ConfigError, JaxformerError, first_few
from jaxformer.files import local_path
from jaxformer.modules import AttentionFunction, LoRA
from jaxformer.modules.pure import Params
from jaxformer.multihost import storage
from jaxformer.sharding import Placement
from jaxformer.tasks import own_attention, registry, run_lock, rundir
from jaxformer.tasks.base import Predictor, Trained
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.training_setup import TrainingSetup, make_training_setup

logger = logging.getLogger(__name__)

Path = str | os.PathLike[str]
S = TypeVar("S")
T = TypeVar("T")
REMOVAL = 0.5
"""The seconds after which a step whose removal has begun is no longer listed."""


def load(
    run: Path,
    *,
    checkpoint: str | int = "best",
    mesh: str = "",
    decode: Mapping[str, object] | None = None,
    attention: AttentionFunction | str | None = None,
) -> Any:
    """Returns the predictor of a run of any task: a `Translator`, a `TextGenerator`, ...

    Args:
      checkpoint: "best" (by `train.metric`; the last one without validations), "last", "average", or a step.
      mesh: the devices that share the work; by default each holds a copy of the parameters.
      decode: settings that replace those of the configuration's `decode`.
      attention: your own, if the run was trained with one that has no file, or whose file has changed; or FILE.py:NAME.

    Raises:
      ConfigError: `run` is not a run directory, or has no such checkpoint or setting; or its attention has changed.
      CheckpointError: the run has no checkpoint yet, or it is damaged.
    """
    config = registry.read_config(run := local_path(run))
    if decode:
        if not hasattr(config, "decode"):
            raise ConfigError(f"{run} has no settings named decode: a run of {config.task} has no search")
        config = changed(config, {"decode": decode})
    return predictor(run, config, checkpoint=str(checkpoint), mesh=mesh, attention=attention)


def predictor(run: pathlib.Path, config: TaskConfig, **options: Any) -> Predictor:
    """Returns the predictor of a run with a configuration that may differ from the saved one in `decode` only.

    Args:
      options: see `any_predictor`.
    """
    if rundir.encoder_family(run):
        raise ConfigError(
            f"{run} was converted from an encoder without a head, which predicts nothing: train a classifier with "
            f"--init-from {run}"
        )
    return any_predictor(run, config, **options)


def any_predictor(
    run: pathlib.Path,
    config: TaskConfig,
    *,
    checkpoint: str = "best",
    mesh: str = "",
    attention: AttentionFunction | str | None = None,
) -> Any:
    """Returns the `predictor` of a run, or that of an encoder with a head that was never trained.

    For the options, see `load`.
    """
    config, own = own_attention.settle(config, run, attention, saved=config)
    task = registry.task_of(config)
    vocabulary = task.vocabulary(run)
    rundir.check_vocabulary(run, vocabulary.fingerprint)
    placement = Placement(sharding.mesh(mesh))
    setup = make_training_setup(task, config, vocabulary.vocab_size, placement, own and own.attention)
    params, steps = restore_params(run, setup, checkpoint)
    return task.predictor(config, vocabulary, Trained(setup.network.net, params, setup.placement, steps))


def average(run: Path, *, last: int = 5, mesh: str = "", attention: AttentionFunction | str | None = None) -> list[int]:
    """Averages the parameters of the last checkpoints (Vaswani et al. 2017, 6.1) into ``run/average``.

    Returns the steps that were averaged: fewer than `last` if fewer are kept; the best only if it is one of the last.
      The old average is kept until the new one is complete. Matrices A and B of adapters are averaged separately,
      and moving averages, which "best" and "last" are with `train.ema_decay`, are not averaged.

    Args:
      attention: see `load`.

    Raises:
      ConfigError: `last` is less than 1, or `run` is not a run.
      OSError: another process averages it.
      CheckpointError: the run has no checkpoint yet, or a damaged one.
    """
    if last < 1:
        raise ConfigError(f"last must be at least 1, got {last}")
    saved = registry.read_config(run := local_path(run))
    config, own = own_attention.settle(saved, run, attention, saved=saved)
    setup = run_setup(run, config, mesh, own and own.attention)
    chosen = lambda saved: saved.steps()[-min(last, config.train.keep_last) :]
    target = parameters_alone(setup.abstract_state())
    steps, params = read_steps(run, None, chosen, lambda saved, steps: saved.average(target, steps))
    options = {"timeout": training.save_timeout(params), "fingerprint": rundir.run_fingerprint(run)}
    with run_lock.held(run / "average"), training.Checkpoints(run / "average", keep_last=1, **options) as saved:
        number = max([steps[-1], *(old + 1 for old in saved.steps())])  # names the folder; the metadata has the steps
        saved.save(number, params, {"averaged": steps})  # then removes the old one
    return steps


def load_params(
    run: pathlib.Path, checkpoint: str, mesh: str, attention: AttentionFunction | None = None
) -> tuple[Params, tuple[int, ...]]:
    """Returns the parameters of a run, adapters merged into them, and their steps; see `make_training_setup`."""
    setup = run_setup(run, registry.read_config(run), mesh, attention)
    params, steps = restore_params(run, setup, checkpoint)
    net = setup.network.net
    return net.merged(params) if isinstance(net, LoRA) else params, steps


def run_setup(
    run: pathlib.Path, config: TaskConfig, mesh: str = "", attention: AttentionFunction | None = None
) -> TrainingSetup[Any, Any]:
    """Returns the training setup of a run with its own vocabulary."""
    task = registry.task_of(config)
    return make_training_setup(task, config, task.vocabulary(run).vocab_size, Placement(sharding.mesh(mesh)), attention)


def restore_params(run: pathlib.Path, setup: TrainingSetup, checkpoint: str) -> tuple[Params, tuple[int, ...]]:
    """Returns the parameters of a checkpoint of a run, and their steps; see `load`."""
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

    All processes read the same steps. A training removes old ones: if one of those chosen disappears before it is read,
    the steps are listed again.

    Raises:
      CheckpointError: they cannot be read, and the choice is still the same.
      DistributedError: see `_agreed`.
    """
    with _open(run, folder) as saved:
        chosen = _agreed(saved, choose)
        while True:
            try:
                return chosen, read(saved, chosen)
            except training.OtherModelError:
                raise
            except training.CheckpointError:
                time.sleep(REMOVAL)
                before, chosen = chosen, _agreed(saved, choose)
                if chosen == before:
                    raise


def _agreed(saved: training.Checkpoints, choose: Callable[[training.Checkpoints], S]) -> S:
    """Returns the choice of all processes, which list the steps until they choose the same, or all fail alike.

    A training may save a step between the looks of two processes, and a network file system may show an old list.

    Raises:
      DistributedError: in every process, because they still choose differently after `storage.SECONDS`.
    """
    chosen, errors = list[S](), list[JaxformerError]()

    def seen() -> str:
        saved.reload()
        chosen.clear()
        errors.clear()
        try:
            chosen.append(choose(saved))
        except JaxformerError as error:
            errors.append(error)
        return repr([*chosen, *map(type, errors)])

    storage.wait_until_same(saved.directory, seen)
    for error in errors:
        raise error
    return chosen[0]


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
    """Checks that a run has a checkpoint of this name; see `choose_step` for the errors."""
    if _of_parameters(run, checkpoint) is None:
        with open_checkpoints(run) as saved:
            _agreed(saved, lambda saved: choose_step(saved, checkpoint))


def _of_parameters(run: pathlib.Path, checkpoint: str) -> pathlib.Path | None:
    """Returns the folder of this checkpoint if it holds parameters and no optimizer, else None."""
    if rundir.is_pretrained(run):
        if checkpoint not in ("best", "last"):
            raise ConfigError(f"no checkpoint {checkpoint!r}: {_converted(run)}; leave out the checkpoint")
        return run / rundir.PRETRAINED
    if checkpoint != "average":
        return None
    if not (run / "average").is_dir():  # opening it would create it
        raise no_average(run)
    return run / "average"


def watch(run: pathlib.Path, checkpoint: str, steps: Sequence[int]) -> Callable[[], None]:
    """Returns a function that checks that the files of loaded parameters are still the same.

    It raises a ConfigError if they were replaced or removed. Further checkpoints change nothing.
    """
    folder = _of_parameters(run, checkpoint)
    folders = [run / "checkpoints" / str(step) for step in steps] if folder is None else [folder]
    paths = [run / "config.json", *(path for folder in folders for path in (folder, *sorted(folder.glob("*"))))]
    before = [_identity(path) for path in paths]

    def check() -> None:
        for path, known in zip(paths, before, strict=True):
            found = _identity(path)
            if found != known:
                what = "is gone" if found is None else "has changed"
                raise ConfigError(f"{path} {what} since {run} was loaded; start the command again")

    return check


def _identity(path: pathlib.Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_mtime_ns


def open_checkpoints(run: pathlib.Path) -> training.Checkpoints:
    """Opens the checkpoints of a run for reading, without creating their folder."""
    folder = run / "checkpoints"
    if rundir.is_pretrained(run):
        raise ConfigError(_converted(run))
    if not folder.is_dir():
        raise _no_checkpoint(folder)
    return _open(run, folder)


def _converted(run: pathlib.Path) -> str:
    return f"{run} is {rundir.kind_of_pretrained(run)}, which has one set of parameters and no checkpoints"


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
