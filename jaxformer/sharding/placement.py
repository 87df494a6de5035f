"""The placement of a training run: one mesh, one rule table, and their effect on states, batches and functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import PyTree

from jaxformer.axes import Axes, parameter_name
from jaxformer.errors import ConfigError
from jaxformer.sharding.mesh import AXES
from jaxformer.sharding.rules import RULES, F, Rules, shardings_like, shards_of, spec, state_shardings, with_axis_rules


@dataclasses.dataclass(frozen=True)
class Placement:
    """A mesh and the rule table that maps logical axes to it; hashable, so it can be a static argument of ``jax.jit``.

    Raises:
      ConfigError: the mesh has axes that are not `Auto`, or all its axes are unknown to the rules.

    >>> from jaxformer import sharding
    >>> placement = Placement(sharding.mesh("data=1", jax.devices()[:1]))
    >>> placement.num_batch_shards, len(placement.rows_here(6, parts=4))
    (1, 8)
    >>> placement.assemble({"x": np.ones((8, 2))})["x"].shape
    (8, 2)
    """

    mesh: Mesh
    rules: Rules = dataclasses.field(default_factory=lambda: RULES)

    def __post_init__(self) -> None:
        names = self.mesh.axis_names
        if any(kind != AxisType.Auto for kind in self.mesh.axis_types):
            raise ConfigError(
                f"the compiler places activations along axes that are Auto, got {self.mesh.axis_types}, the default of "
                f"jax.make_mesh: give it axis_types=(jax.sharding.AxisType.Auto,) * {len(names)}"
            )
        named = {axis for axes in self.rules.values() for axis in axes}
        if self.mesh.size > 1 and named.isdisjoint(names):  # all devices would do the same work
            raise ConfigError(
                f"no rule names a mesh axis of {names}; name the axes as in sharding.AXES, {', '.join(AXES)}, or give "
                f'Placement(mesh, {{**sharding.RULES, "batch": ("{names[0]}",)}}) and further rules'
            )

    def __hash__(self) -> int:
        return hash(self.mesh)

    def summary(self) -> str:
        """Returns text such as ``"8 devices (data=4,tensor=2)"``."""
        sizes = ",".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        return "1 device" if self.mesh.size == 1 else f"{self.mesh.size} devices ({sizes})"

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of a replicated array, which every device holds in full."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def num_batch_shards(self) -> int:
        """The number of shards along the rows of a batch."""
        return shards_of(self.rows.spec[0], self.mesh)

    @property
    def num_length_shards(self) -> int:
        """The number of shards along a sequence length that it divides."""
        return shards_of(spec(("length",), self.rules, self.mesh)[0], self.mesh)

    @property
    def rows(self) -> NamedSharding:
        """The sharding of a batch along its rows, from the rule table; the other dimensions are not sharded."""
        return NamedSharding(self.mesh, spec(("batch",), self.rules, self.mesh))

    def rows_here(self, num_rows: int, *, parts: int = 1) -> np.ndarray:
        """Returns the sorted indices of the rows that this process must read, because its devices hold them.

        The batch is filled up to a multiple of `num_batch_shards` times `parts`. On a torus, neighbors along a mesh
        axis are rarely on the same host, so these rows are often scattered.
        """
        num_rows += -num_rows % (self.num_batch_shards * parts)
        size = num_rows // self.num_batch_shards
        return np.concatenate([np.arange(size * shard, size * (shard + 1)) for shard in self._shards_here()])

    def _shards_here(self) -> list[int]:
        indices = self.rows.devices_indices_map((self.num_batch_shards,)).items()
        here = {index[0].start or 0 for device, index in indices if device.process_index == jax.process_index()}
        return sorted(here)

    def assemble(self, local: PyTree[np.ndarray]) -> PyTree[jax.Array]:
        """Returns global arrays, from the rows in `rows_here` of each process, without any communication.

        Raises:
          ConfigError: the number of rows is not divisible by this process's number of shards.
        """
        num_shards, local = len(self._shards_here()), jax.tree.map(np.asarray, local)
        for x in jax.tree.leaves(local):
            if not x.ndim or len(x) % num_shards:
                got = f"{len(x)} rows" if x.ndim else "a scalar"
                raise ConfigError(
                    f"a batch along {self.rows.spec[0]} = {self.num_batch_shards} must have a multiple of {num_shards} "
                    f"rows in this process, got {got}; rows_here(number) gives the rows of a batch that is filled up"
                )
        if self.rows.is_fully_addressable:
            return jax.device_put(local, self.rows)  # all arrays at once, in half the time
        grow = lambda x: (len(x) // num_shards * self.num_batch_shards, *x.shape[1:])
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(self.rows, x, grow(x)), local)

    def params(self, shapes: PyTree, names: PyTree[Axes]) -> PyTree[NamedSharding]:
        """Returns the shardings of parameters of these shapes and axis names (``net.shapes``, ``net.axes``)."""
        return shardings_like(shapes, names, self.rules, self.mesh)

    def describe(self, params: PyTree, names: PyTree[Axes]) -> str:
        """Returns a table of the parameters: names, shapes, logical axes, shardings, and bytes per device.

        Args:
          params: arrays, which may be placed differently from what the rules say, or shapes (``net.shapes``).
          names: the axis names of each parameter (``net.axes``).

        Raises:
          ConfigError: the mesh axes of a dimension do not divide it; the message names the parameter.

        >>> from jaxformer import sharding
        >>> shapes, names = {"kernel": jax.ShapeDtypeStruct((8, 4), np.float32)}, {"kernel": ("model", "hidden")}
        >>> print(Placement(sharding.mesh("fsdp=1", jax.devices()[:1])).describe(shapes, names))
        parameter  shape  logical axes   sharded over  bytes/device
        kernel     8 x 4  model, hidden  fsdp, -                128
        all        32                                           128
        """
        shardings = jax.tree.leaves(self.params(params, names))
        arrays = jax.tree_util.tree_leaves_with_path(params)
        axes = jax.tree.leaves(names, is_leaf=lambda x: isinstance(x, tuple))
        rows, total = [("parameter", "shape", "logical axes", "sharded over", "bytes/device")], 0
        for (path, x), of_x, planned in zip(arrays, axes, shardings, strict=True):
            where = getattr(x, "sharding", None) or planned
            size = math.prod(where.shard_shape(x.shape)) * x.dtype.itemsize
            name, shape = parameter_name(path), " x ".join(map(str, x.shape))
            rows.append((name, shape or "scalar", ", ".join(map(str, of_x)), _as_text(where, x.ndim), f"{size:,}"))
            total += size
        count = sum(math.prod(x.shape) for _, x in arrays)
        rows.append(("all", f"{count:,}", "", "", f"{total:,}"))
        sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row[:-1], sizes)) + "  " + row[-1].rjust(sizes[-1]) for row in rows)
        return "\n".join(lines)

    def state(self, make: Callable[[], PyTree], params: PyTree, optimizer: optax.GradientTransformation) -> PyTree:
        """Returns the shardings of the training state that `make()` makes; `params` are its parameters' shardings."""
        return state_shardings(jax.eval_shape(make), params, optimizer, self.mesh)

    def with_axis_rules(self, function: F) -> F:
        """Returns `function` with its activations placed, for use inside ``jax.jit``; see `rules.with_axis_rules`."""
        return function if self.mesh.size == 1 else with_axis_rules(self.rules, self.mesh)(function)


def _as_text(sharding: jax.sharding.Sharding, num_dims: int) -> str:
    """Describes a sharding: the mesh axes of each dimension, "-" for none; or the single device; or another kind."""
    if isinstance(sharding, SingleDeviceSharding):
        return f"all on device {next(iter(sharding.device_set)).id}"
    if not isinstance(sharding, NamedSharding):
        return type(sharding).__name__
    entries = (*sharding.spec, *[None] * num_dims)[:num_dims]
    return ", ".join(" x ".join((axes,) if isinstance(axes, str) else axes or "-") for axes in entries)
