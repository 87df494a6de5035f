"""Plans: the training step of a configuration, or a program in a file, compiled ahead of time for target hardware."""

from __future__ import annotations

import dataclasses
import inspect

from jax.sharding import Mesh

from jaxformer import functional
from jaxformer.config import changed
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.files import local_path
from jaxformer.planning import topology
from jaxformer.planning.forecast import Forecast, Workload, forecast
from jaxformer.planning.forecast import remedies as remedies_of
from jaxformer.planning.program import Program
from jaxformer.sharding import Placement
from jaxformer.tasks import own_files, registry
from jaxformer.tasks.base import AnyNetwork
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.training_setup import TrainingSetup, make_training_setup

RowsAndLength = tuple[int, int]
"""The number of rows and the length of a batch."""


def plan(config: TaskConfig, name: str, *, shape: RowsAndLength | None = None) -> tuple[Forecast, list[str]]:
    """Compiles the training step of a configuration, on its mesh, for a topology.

    Returns the forecast, and changes that would make the step fit if it does not.

    Args:
      name: the topology, such as "v5p:4x4x8" (of each slice) or "h100:16x8" (of all hosts).
      shape: rows and length of the batch; by default of the batch that needs the most memory.

    Raises:
      ConfigError: an unknown topology, a mesh that does not fit it or the model, no compiler for it, or settings that
        training would refuse.
    """
    registry.task_of(config)
    config.check()
    mesh = topology.mesh(name, config.mesh)
    result = forecast(workload(config, mesh, shape=shape), name, mesh)
    if result.memory.fits:
        return result, []
    return result, remedies(config, result, shape=shape)


def load_program(reference: str, name: str, mesh: str | None) -> Program:
    """Runs a file, and returns the program that one of its functions makes, on a mesh for a topology.

    Args:
      reference: ``FILE.py:NAME``; the function takes the mesh, or nothing if `Program.mesh` says it as text.
      name: the topology.
      mesh: the axes and their sizes; None for those of the program, or a single axis.

    Raises:
      ConfigError: there is no such function, it raises an error, or it returns no `Program`; or see `topology.mesh`.
    """
    file, _, function = reference.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        raise ConfigError(f"--function must be FILE.py:NAME, got {reference!r}")
    path = local_path(file)
    source = own_files.read(path, what="file")
    topology.parse(name)
    try:
        module = own_files.run(path, source, name=f"jaxformer_program_{short_digest([str(path.resolve())])}")
        make = getattr(module, function, None)
        if not callable(make):
            public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
            raise ConfigError(f"{path} has no function {function!r}{did_you_mean(function, public)}")
        if inspect.signature(make).parameters:
            made = make(topology.mesh(name, mesh or ""))
        else:
            made = make()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(own_files.explained(error, path)) from error
    if not isinstance(made, Program):
        raise ConfigError(f"{reference} returned {type(made).__name__}, not a jaxformer.planning.program.Program")
    if isinstance(made.mesh, Mesh):
        return made
    if inspect.signature(make).parameters and not made.mesh:
        return dataclasses.replace(made, mesh=topology.mesh(name, mesh or ""))
    return dataclasses.replace(made, mesh=mesh or made.mesh)


def planned_setup(config: TaskConfig, mesh: Mesh) -> TrainingSetup:
    """Returns the training setup of a configuration without its data: the settings give the vocabulary size."""
    task = registry.task_of(config)
    return make_training_setup(task, config, task.vocab_size(config), Placement(mesh))


def workload(config: TaskConfig, mesh: Mesh, *, shape: RowsAndLength | None = None) -> Workload:
    """Lowers the training step of a configuration for the devices of a mesh, which need not exist on this machine."""
    setup = planned_setup(config, mesh)
    num_rows, length = shape or setup.network.largest_batch
    try:
        lowered, batch = setup.lower(num_rows, length)
        return Workload(lowered, setup.abstract_state(), setup.costs(batch))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"a batch of {num_rows} x {length}: {error}") from error


def remedies(config: TaskConfig, result: Forecast, *, shape: RowsAndLength | None = None) -> list[str]:
    """Returns changes that would make the step fit, as options of the command line with their arithmetic."""
    network = _network(config)
    num_rows, length = shape or network.largest_batch
    option = lambda rows: f"--batch {rows}x{length}" if shape else _batch_option(config, rows, length)
    return remedies_of(
        result,
        num_rows=num_rows,
        num_microbatches=config.train.num_microbatches,
        remat=getattr(network.net.config, "remat", True),
        smaller_batch=option,
    )


def _network(config: TaskConfig) -> AnyNetwork:
    task = registry.task_of(config)
    return task.network(config, task.vocab_size(config), functional.attention)


def _batch_option(config: TaskConfig, num_rows: int, length: int) -> str:
    """Returns the option for batches of this number of rows; an empty text without one, or if training refuses it."""
    data = getattr(config, "data", None)
    for name, value in {"batch_size": num_rows, "tokens_per_batch": num_rows * length}.items():
        if hasattr(data, name):
            smaller = _network(changed(config, {"data": {name: value}}))
            return f"--data.{name} {value}" if smaller.largest_batch == (num_rows, length) else ""
    return ""
