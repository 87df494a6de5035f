"""Placement as data: a table from logical axis names to mesh axes, and its two uses.

Parameters and optimizer moments are born where the table says (`shardings_like`, `state_shardings`); activations that
a model names are placed while the function is traced (`under`). A mesh axis cuts at most one dimension of an array, the
first one that asks for it. So one table serves both: "model" is cut over `fsdp` in a parameter, but not in an
activation, whose batch is cut over `fsdp` already.
"""

from __future__ import annotations

import contextvars
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import axes
from jaxformer.axes import Axes, AxisName
from jaxformer.errors import ConfigError

Rules = Mapping[AxisName, tuple[str, ...]]
F = TypeVar("F", bound=Callable[..., Any])

RULES: Rules = {
    "batch": ("slice", "data", "fsdp"),
    "length": ("context",),
    "memory_length": ("context",),
    "model": ("fsdp",),
    "heads": ("tensor",),
    "hidden": ("tensor",),
    "vocab": ("tensor",),
    "experts": ("expert",),
}
"""Data, fully sharded, tensor (Megatron), context and expert parallelism, for the axes that the mesh has."""


def spec(names: Axes, rules: Rules, mesh: Mesh) -> PartitionSpec:
    """Returns the `PartitionSpec` of an array whose dimensions have these names.

    >>> import numpy as np
    >>> grid = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tensor"))
    >>> list(spec(("model", "heads", "head_dim"), RULES, grid)), list(spec(("batch", "length", "model"), RULES, grid))
    (['fsdp', 'tensor', None], ['fsdp', None, None])
    """
    free, cuts = set(mesh.axis_names), []
    for name in names:
        wanted = rules.get(name, ()) if name is not None else ()
        taken = tuple(axis for axis in wanted if axis in free)
        free -= set(taken)
        cuts.append(taken if len(taken) > 1 else taken[0] if taken else None)
    return PartitionSpec(*cuts)


def shardings_like(shapes: Any, names: Any, rules: Rules, mesh: Mesh) -> Any:
    """Returns a sharding for every array of a tree, from its axis names.

    Raises:
      ConfigError: the mesh axes of a dimension do not divide it; the parameter is named.
    """

    def place(path: Any, shape: Any, names: Axes) -> NamedSharding:
        sharding = NamedSharding(mesh, spec(names, rules, mesh))
        for dim, (size, cut) in enumerate(zip(shape.shape, sharding.spec, strict=True)):
            shards = ways(cut, mesh)
            if size % shards:
                raise ConfigError(
                    f"params{jax.tree_util.keystr(path)} of shape {list(shape.shape)}: "
                    f"dimension {dim} ({names[dim]}) cannot be cut along {cut} = {shards}"
                )
        return sharding

    return jax.tree_util.tree_map_with_path(place, shapes, names)


def ways(cut: str | tuple[str, ...] | None, mesh: Mesh) -> int:
    """Returns the number of shards into which an entry of a `PartitionSpec` cuts a dimension."""
    return math.prod(mesh.shape[axis] for axis in ((cut,) if isinstance(cut, str) else cut or ()))


def state_shardings(state: Any, params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> Any:
    """Returns the shardings of a `TrainState`: moments and averages lie with their parameters, the rest is replicated.

    Args:
      state: shapes, from ``jax.eval_shape``.
      params: the parameters' shardings, from `shardings_like`.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    moments = optax.tree.map_params(
        optimizer, lambda _, sharding: sharding, state.optimizer, params, transform_non_params=lambda _: replicated
    )
    ema_params = None if state.ema_params is None else params
    return type(state)(step=replicated, params=params, optimizer=moments, ema_params=ema_params, key=replicated)


def under(rules: Rules, mesh: Mesh) -> Callable[[F], F]:
    """Returns a decorator: while the function is traced, the activations that it names are placed.

    It goes inside ``jax.jit``: around it, jit would find the program of another placement in its cache.
    """

    def place(x: jax.Array, names: Axes) -> jax.Array:
        cuts = spec(names, rules, mesh)
        fits = (cut if size % ways(cut, mesh) == 0 else None for size, cut in zip(x.shape, cuts, strict=True))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*fits)))

    def wrap(function: F) -> F:
        @functools.wraps(function)
        def placed(*args: Any, **kwargs: Any) -> Any:
            token = _active.set((rules, mesh))
            try:
                with axes.placing(place):
                    return function(*args, **kwargs)
            finally:
                _active.reset(token)

        return placed  # type: ignore[return-value]

    return wrap


def num_shards(*names: AxisName) -> int:
    """Returns the number of devices over which the rules of `under` shard an array of these dimensions, 1 without."""
    active = _active.get()
    return 1 if active is None else math.prod(ways(cut, active[1]) for cut in spec(names, *active))


_active: contextvars.ContextVar[tuple[Rules, Mesh] | None] = contextvars.ContextVar("rules", default=None)
