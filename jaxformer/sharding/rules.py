"""Placement as data: a table from logical axis names to mesh axes, and the two ways it is used.

Parameters and optimizer moments are born where the table says (`shardings_like`, `state_shardings`); activations that
a model names are placed while the function is traced (`under`).  A mesh axis cuts at most one dimension of an array,
and the first that asks for it has it, so one table serves both: "model" is cut over `fsdp` in a parameter, but not in
an activation, whose batch is cut there already.
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
"""Data, fully sharded, tensor (Megatron), context and expert parallelizm, whichever axes the mesh has."""


def spec(names: Axes, rules: Rules, mesh: Mesh) -> PartitionSpec:
    """Where the dimensions of these names go.

    >>> import numpy as np
    >>> grid = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tensor"))
    >>> list(spec(("model", "heads", "head_dim"), RULES, grid)), list(spec(("batch", "length", "model"), RULES, grid))
    (['fsdp', 'tensor', None], ['fsdp', None, None])
    """
    free, found = set(mesh.axis_names), []
    for name in names:
        wanted = rules.get(name, ()) if name is not None else ()
        mine = tuple(axis for axis in wanted if axis in free)
        free -= set(mine)
        found.append(mine if len(mine) > 1 else mine[0] if mine else None)
    return PartitionSpec(*found)


def shardings_like(shapes: Any, names: Any, rules: Rules, mesh: Mesh) -> Any:
    """A sharding for every array of a tree, from its axis names.

    Raises:
      ValueError: a dimension that its mesh axes do not divide, with the parameter's name.
    """

    def place(path: Any, shape: Any, names: Axes) -> NamedSharding:
        sharding = NamedSharding(mesh, spec(names, rules, mesh))
        for dim, (size, cut) in enumerate(zip(shape.shape, sharding.spec, strict=True)):
            pieces = ways(cut, mesh)
            if size % pieces:
                raise ValueError(
                    f"params{jax.tree_util.keystr(path)} of shape {list(shape.shape)}: "
                    f"dimension {dim} ({names[dim]}) cannot be cut along {cut} = {pieces}"
                )
        return sharding

    return jax.tree_util.tree_map_with_path(place, shapes, names)


def ways(cut: str | tuple[str, ...] | None, mesh: Mesh) -> int:
    """Into how many pieces an entry of a `PartitionSpec` cuts a dimension."""
    return math.prod(mesh.shape[axis] for axis in ((cut,) if isinstance(cut, str) else cut or ()))


def state_shardings(state: Any, params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> Any:
    """The shardings of a `TrainState` of shapes: moments and averages lie where their parameters do, the rest on all.

    Args:
      state: shapes, from ``jax.eval_shape``.
      params: the parameters' shardings, from `shardings_like`.
    """
    whole = NamedSharding(mesh, PartitionSpec())
    moments = optax.tree.map_params(
        optimizer, lambda _, placed: placed, state.optimizer, params, transform_non_params=lambda _: whole
    )
    ema_params = None if state.ema_params is None else params
    return type(state)(step=whole, params=params, optimizer=moments, ema_params=ema_params, key=whole)


def under(rules: Rules, mesh: Mesh) -> Callable[[F], F]:
    """Makes a function, while it is traced, place the activations that it names.

    Goes inside ``jax.jit``: around it, jit would find the program of another placement in its cache.
    """

    def place(x: jax.Array, names: Axes) -> jax.Array:
        found = spec(names, rules, mesh)
        fits = (cut if size % ways(cut, mesh) == 0 else None for size, cut in zip(x.shape, found, strict=True))
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
