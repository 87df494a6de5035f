"""The placement of a run: one mesh, one rule table, and their effect on states, batches and functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.sharding import rules as tables
from jaxformer.sharding.rules import RULES, Rules


@dataclasses.dataclass(frozen=True)
class Placement:
    """A mesh and the table that maps logical axes to it; hashable, so it can be static in a program.

    >>> from jaxformer import sharding
    >>> placement = Placement(sharding.mesh("data=1", jax.devices()[:1]))
    >>> placement.ways, len(placement.rows_here(6, parts=4))
    (1, 8)
    >>> placement.assemble({"x": np.ones((8, 2))})["x"].shape
    (8, 2)
    """

    mesh: Mesh
    rules: Rules = dataclasses.field(default_factory=lambda: RULES)

    def __hash__(self) -> int:
        return hash(self.mesh)

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of a replicated array: all of it on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def ways(self) -> int:
        """The number of shards of the rows of a batch."""
        return tables.ways(self.rows.spec[0], self.mesh)

    @property
    def length_ways(self) -> int:
        """The number of shards of lengths that are divisible by it."""
        return tables.ways(tables.spec(("length",), self.rules, self.mesh)[0], self.mesh)

    @property
    def rows(self) -> NamedSharding:
        """The sharding of a batch along its rows, as the table says; the other dimensions are not sharded."""
        return NamedSharding(self.mesh, tables.spec(("batch",), self.rules, self.mesh))

    def rows_here(self, num_rows: int, *, parts: int = 1) -> np.ndarray:
        """Returns the indices, in order, of the rows that this process's devices hold and that it must read.

        The batch is filled up to a multiple of `ways` times `parts`. On a torus, neighbors along a mesh axis are seldom
        neighbors in a host, so these rows are often scattered.
        """
        num_rows += -num_rows % (self.ways * parts)
        size = num_rows // self.ways
        return np.concatenate([np.arange(size * shard, size * (shard + 1)) for shard in self._shards_here()])

    def _shards_here(self) -> list[int]:
        indices = self.rows.devices_indices_map((self.ways,)).items()
        here = {index[0].start or 0 for device, index in indices if device.process_index == jax.process_index()}
        return sorted(here)

    def assemble(self, local: Any) -> Any:
        """Returns arrays of the rows of all processes, from those of `rows_here`, without any communication."""
        num_shards = len(self._shards_here())

        def global_array(x: Any) -> jax.Array:
            x = np.asarray(x)
            shape = len(x) // num_shards * self.ways, *x.shape[1:]
            return jax.make_array_from_process_local_data(self.rows, x, shape)

        return jax.tree.map(global_array, local)

    def params(self, shapes: Any, names: Any) -> Any:
        """Returns the shardings of parameters of these shapes and axis names (``net.shapes``, ``net.axes``)."""
        return tables.shardings_like(shapes, names, self.rules, self.mesh)

    def state(self, make: Callable[..., Any], params: Any, optimizer: optax.GradientTransformation) -> Any:
        """Returns the shardings of the training state that `make()` makes; `params` are those of its parameters."""
        return tables.state_shardings(jax.eval_shape(make), params, optimizer, self.mesh)

    def under(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` with placed activations; to be applied inside ``jax.jit``, like `rules.under`."""
        return function if self.mesh.size == 1 else tables.under(self.rules, self.mesh)(function)
