"""The setup of training: a network on a mesh, with the training state and step of every task."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

import jax
import numpy as np
import optax
from jax.extend.core import ClosedJaxpr

from jaxformer import functional, hardware, sharding, targets, training
from jaxformer.config import changed
from jaxformer.errors import ConfigError, plural
from jaxformer.models import choices
from jaxformer.modules import AttentionFunction, lora, matching
from jaxformer.modules.lora import ADAPTERS
from jaxformer.modules.pure import Params
from jaxformer.planning import flops
from jaxformer.planning.forecast import Costs
from jaxformer.sharding import Placement
from jaxformer.tasks import own_attention
from jaxformer.tasks.base import BatchT, LossSums, ModelT, Network, Say, batch_shape, describe_batch
from jaxformer.tasks.config import LowRank, TaskConfig
from jaxformer.tasks.registry import AnyTask

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainingSetup(Generic[ModelT, BatchT]):
    """A network, its optimizer and their placement on a mesh; making one allocates nothing."""

    config: TaskConfig
    network: Network[ModelT, BatchT]
    placement: Placement
    network_with: Callable[[TaskConfig, AttentionFunction], Network[ModelT, BatchT]]
    """The network of a configuration with an attention function, without adapters."""
    attention: AttentionFunction | None = None
    """A user's own attention; None for the library's."""

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam or Muon, with its schedule, for the trained parameters; moving averages have their own decay."""
        train, axes = self.config.train, self.network.net.axes
        optimizer = training.make_optimizer(self.config.optimizer, steps=train.steps, axes=axes)
        for name, decay in self.network.averages.items():
            optimizer = training.averaging(optimizer, matching(self.network.net.shapes, [name]), decay=decay)
        if self.frozen is not None:
            optimizer = training.freeze(optimizer, self.frozen)
        return optimizer

    @functools.cached_property
    def frozen(self) -> Params | None:
        """True for each frozen parameter; None if all are trained."""
        if not (patterns := self.config.tune.frozen_patterns):
            return None
        try:
            frozen = matching(self.network.net.shapes, patterns)
        except ValueError as error:
            raise ConfigError(f"tune.frozen: {error}") from error
        if all(jax.tree.leaves(frozen)):
            raise ConfigError(f"tune.frozen {self.config.tune.frozen!r} matches every parameter, so none is trained")
        if self.config.tune.adapters and all(jax.tree.leaves(frozen[ADAPTERS])):
            raise ConfigError(
                f"tune.frozen {self.config.tune.frozen!r} also matches every adapter, whose names begin with "
                f"{ADAPTERS}/; use a pattern that matches other parameters only, such as encoder/* or decoder/*"
            )
        return frozen

    @property
    def trained(self) -> Params:
        """The shapes of the parameters that are trained, None in place of the others."""
        shapes = self.network.net.shapes
        if self.frozen is None:
            return shapes
        return jax.tree.map(lambda x, is_frozen: None if is_frozen else x, shapes, self.frozen)

    @property
    def size(self) -> str:
        """The number of parameters in words, and that of the trained ones if some are frozen or are adapters."""
        total = self.network.num_parameters
        if self.frozen is None and not self.config.tune.adapters:
            return f"{total:,} parameters"
        trained = sum(x.size for x in jax.tree.leaves(self.trained))
        return f"{total:,} parameters, {trained:,} of them trained ({trained / total:.1%}),"

    @property
    def label_smoothing(self) -> float:
        """The label smoothing of the training loss, 0 in a task without it; the validation loss has none."""
        return getattr(getattr(self.config, "loss", None), "label_smoothing", 0.0)

    @functools.cached_property
    def params_shardings(self) -> Params:
        """The shardings of the parameters.

        Raises:
          ConfigError: the mesh does not divide a dimension that it shards; or it has an axis that shards nothing, so
            that all devices along it would do the same work.
        """
        net, mesh = self.network.net, self.placement.mesh
        shardings = self.placement.params(net.shapes, net.axes)
        activations = sharding.spec(self.network.sharded_axes, self.placement.rules, mesh)
        entries = [entry for spec in (activations, *(x.spec for x in jax.tree.leaves(shardings))) for entry in spec]
        used = set(jax.tree.leaves(entries))
        for axis, size in mesh.shape.items():
            if size > 1 and axis not in used:
                raise ConfigError(
                    f"mesh axis {axis} = {size} shards nothing of this model; "
                    "give its devices to another axis, such as data"
                )
        return shardings

    @functools.cached_property
    def shardings(self) -> training.TrainState:
        """The sharding of every leaf of the training state."""
        return self.placement.state(self._create, self.params_shardings, self.optimizer)

    def new_state(self) -> training.TrainState:
        """Returns the state before the first step; every leaf is created on its devices."""
        return self._create(shardings=self.shardings)

    def abstract_state(self) -> training.TrainState:
        """Returns the shapes, dtypes and shardings of the state, which a restored one must match."""
        place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        return jax.tree.map(place, jax.eval_shape(self._create), self.shardings)

    def step(self) -> jax.stages.Wrapped:
        """Returns the jitted training step."""
        train = self.config.train
        return training.make_step(
            self.placement.with_axis_rules(self._loss),
            self.optimizer,
            num_microbatches=train.num_microbatches,
            nonfinite="skip" if train.nonfinite == "skip" else "abort",
            ema_decay=train.ema_decay,
            shardings=self.shardings,
            learning_rate=training.make_schedule(self.config.optimizer, steps=train.steps),
        )

    def _loss(self, params: Params, batch: BatchT, key: jax.Array) -> LossSums:
        """Returns the network's loss; the gradient of frozen parameters is 0 and is not computed."""
        if self.frozen is not None:
            stop = lambda x, frozen: jax.lax.stop_gradient(x) if frozen else x
            params = jax.tree.map(stop, params, self.frozen)
        return self.network.sums(params, batch, key)

    def abstract_batch(self, num_rows: int, length: int) -> BatchT:
        """Returns a batch of ``jax.ShapeDtypeStruct`` on the mesh, whose sequences all have this length."""
        return self.network.abstract_batch(num_rows, length, self.placement.rows)

    def lower(self, num_rows: int, length: int) -> tuple[jax.stages.Lowered, BatchT]:
        """Lowers the training step for the devices of the mesh, which need not exist on this machine.

        Also returns its abstract batch, with the rows padded as in training.
        """
        num_rows += -num_rows % (self.placement.num_batch_shards * self.config.train.num_microbatches)
        batch = self.abstract_batch(num_rows, length)
        with self._targets():
            return self.step().lower(self.abstract_state(), batch), batch

    def costs(self, batch: BatchT) -> Costs:
        """Returns the size and arithmetic of a step on a batch of these shapes, on the devices of the mesh.

        Raises:
          ValueError: a loop over matrix products runs until a condition holds, so their number is unknown.
        """
        network, graph = self.network, self._countable(batch)
        with self._targets():
            again = self.placement.with_axis_rules(flops.repeated)(graph)
        return Costs(
            batch=batch_shape(batch),
            description=describe_batch(batch),
            tokens=network.num_terms(batch),
            parameters=network.num_parameters,
            flops=3 * flops.flops(graph),
            computed_flops=3 * flops.flops(graph) + again,
            compute_dtype=network.compute_dtype,
            unit=network.unit,
            has_frozen=self.frozen is not None,
        )

    def _targets(self) -> contextlib.AbstractContextManager[None]:
        return targets.compiling_for(self.placement.mesh.devices.flatten().tolist())

    def training_flops(self, batch: BatchT) -> int:
        """Returns the `flops` of `costs`, in less time."""
        return 3 * flops.flops(self._forward(batch))

    def _countable(self, batch: BatchT) -> ClosedJaxpr:
        """Returns `_forward`; with the library's attention if a user's own has products that cannot be counted."""
        graph = self._forward(batch)
        if self.attention is None:
            return graph
        try:
            flops.flops(graph)
        except ValueError as error:
            logger.warning("your attention is counted as if it were the library's: %s", error)
            return dataclasses.replace(self, attention=None)._forward(batch)
        return graph

    def _forward(self, batch: BatchT) -> ClosedJaxpr:
        """Returns the graph of the loss of a batch of these shapes, padding included."""
        config = self.config
        network = getattr(getattr(config, "model", None), "feed_forward", None)
        if isinstance(network, choices.Experts):  # as if no expert were ever full
            config = changed(config, {"model": {"feed_forward": {"capacity_factor": None}}})
        return _graph(self.network_with(config, self.attention or flops.attention), batch)

    def rows(self, num_rows: int) -> np.ndarray:
        """Returns the indices of a batch's rows that this process reads."""
        return self.placement.rows_here(num_rows, parts=self.config.train.num_microbatches)

    def on_devices(self, stream: Iterator[object]) -> Iterator[BatchT]:
        """Yields batches on the devices; each is transferred while the previous one is in use."""
        next_batch: BatchT | None = None
        for batch in stream:
            ready, next_batch = next_batch, self.placement.assemble(batch)
            if ready is not None:
                yield ready
        if next_batch is not None:
            yield next_batch

    def _create(self, **options: Any) -> training.TrainState:
        key, ema = jax.random.key(self.config.seed), self.config.train.ema_decay > 0
        return training.create(self.network.net.init, self.optimizer, key, ema=ema, **options)


def _graph(network: Network[ModelT, BatchT], batch: BatchT) -> ClosedJaxpr:
    """Returns the graph of the loss of a network for a batch of these shapes."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), batch)
    loss = lambda params, batch: network.sums(params, batch, jax.random.key(0))[0]
    return flops.forward(loss, network.net.shapes, batch)


def make_training_setup(
    task: AnyTask, config: TaskConfig, vocab_size: Any, placement: Placement, attention: AttentionFunction | None = None
) -> TrainingSetup[Any, Any]:
    """Builds the training setup of a configuration for a vocabulary size.

    Args:
      attention: a user's own attention, on a mesh too; by default that of the configuration, or the library's.

    Raises:
      ConfigError: the settings do not make a valid model, a pattern of `tune` matches nothing, or the model cannot use
        a user's own attention.
    """
    network_with = lambda config, attention: task.network(config, vocab_size, attention)
    if attention is None and config.attention:
        attention = own_attention.load(config.attention).attention
    try:
        network = network_with(config, attention_on(placement))
        network.net.shapes  # noqa: B018 - builds the model abstractly, so that its errors are raised here
        if attention is not None:
            longest = lambda network: _graph(network, network.row(network.largest_batch[1]))
            network = own_attention.checked(functools.partial(network_with, config), attention, longest)
        if adapters := config.tune.adapters:
            network = _with_adapters(network, adapters)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
    setup = TrainingSetup(config, network, placement, network_with, attention)
    setup.frozen  # noqa: B018 - evaluated so that its errors are raised here
    return setup


def _with_adapters(network: Network[ModelT, BatchT], adapters: LowRank) -> Network[ModelT, BatchT]:
    net = lora(network.net, rank=adapters.rank, targets=adapters.target_patterns, alpha=adapters.alpha)
    try:
        net.shapes  # noqa: B018
    except ValueError as error:
        raise ConfigError(f"tune.adapters.targets: {error}") from error
    return dataclasses.replace(network, net=net)


def batch_flops(setup: TrainingSetup[ModelT, BatchT], say: Say) -> Callable[[BatchT], float]:
    """Returns a function from a batch to the model's operations in a step, counted once for each shape.

    It returns 0 if they are unknown, or if frozen parameters save some.
    """
    counts: dict[tuple[tuple[int, ...], ...], float] = {}

    def count(batch: BatchT) -> float:
        shapes = tuple(x.shape for x in jax.tree.leaves(batch))
        if setup.frozen is not None or 0.0 in counts.values():  # those of a batch could not be counted
            return 0.0
        if shapes not in counts:
            try:
                counts[shapes] = setup.training_flops(batch)
            except ValueError as error:
                counts[shapes] = 0.0
                say(f"no model FLOP utilization: {error}")
        return counts[shapes]

    return count


def check_memory(setup: TrainingSetup[ModelT, BatchT]) -> None:
    """Checks, before anything is allocated, that the devices can hold the training state and a batch.

    This is a lower bound: it counts only parameters, their gradient and moments if they are trained, and the batch, all
    divided among the devices.
    """
    network, placement = setup.network, setup.placement
    devices = placement.mesh.devices.flatten().tolist()
    batch, params = setup.abstract_batch(*network.largest_batch), network.net.shapes
    state = _bytes(params) + _bytes(setup.trained) + _bytes(jax.eval_shape(setup.optimizer.init, params))
    needed, available = state + _bytes(batch), total_memory(devices)
    if needed > available:
        what = f"a batch of {describe_batch(batch)}"
        if state > _bytes(batch):
            what = f"a model of {network.num_parameters:,} parameters, with gradient and moments of those trained,"
        raise ConfigError(
            f"{what} needs at least {needed / 1e9:,.1f} GB of memory, but there are {available / 1e9:,.1f} GB on "
            f"{plural(len(devices), 'device')}; choose a smaller one"
        )


def total_memory(devices: Sequence[Any]) -> float:
    """Returns the bytes of memory of these devices, infinity if unknown; CPU devices share the memory of their host."""
    if devices[0].platform == "cpu":
        return float(hardware.host_memory() * len({device.process_index for device in devices}))
    here = [device for device in devices if device.process_index == jax.process_index()]
    stats = here[0].memory_stats() if here else None
    return float(stats["bytes_limit"] * len(devices)) if stats and "bytes_limit" in stats else math.inf


def _bytes(shapes: object) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def attention_on(placement: Placement) -> AttentionFunction:
    """Returns the attention function for a mesh, on which each device computes its shard of the batch and the heads."""
    if placement.mesh.size == 1:
        return functional.attention
    return sharding.sharded_attention(placement.mesh, rules=placement.rules)
