"""Placement as data: a rule table from logical axis names to mesh axes, and its two uses.

Parameters and optimizer moments are created where the table places them (`shardings_like`, `state_shardings`);
activations whose axes a model names are placed while the function is traced (`with_axis_rules`). A mesh axis shards at
most one dimension of an array: the first whose rule names it. So one table serves both: "model" is sharded over `fsdp`
in a parameter, but not in an activation, whose batch is already sharded over `fsdp`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from jaxformer import axes
from jaxformer.axes import Axes, AxisName
from jaxformer.errors import ConfigError

MeshAxes = str | tuple[str, ...] | None
"""The mesh axes over which a dimension is sharded; None if it is replicated."""

Rules = Mapping[AxisName, tuple[str, ...]]
"""The mesh axes over which each logical axis is sharded, outermost first."""

F = TypeVar("F", bound=Callable[..., object])

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

    Raises:
      TypeError: a rule is a string instead of a tuple.

    >>> import numpy as np
    >>> grid = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tensor"))
    >>> list(spec(("model", "heads", "head_dim"), RULES, grid)), list(spec(("batch", "length", "model"), RULES, grid))
    (['fsdp', 'tensor', None], ['fsdp', None, None])
    """
    free, entries = set(mesh.axis_names), []
    for name in names:
        axes_of_name = rules.get(name, ()) if name is not None else ()
        if isinstance(axes_of_name, str):  # iterated by letters, it would shard nothing
            raise TypeError(f"the mesh axes of {name!r} must be a tuple, such as ({axes_of_name!r},), got a string")
        taken = tuple(axis for axis in axes_of_name if axis in free)
        free -= set(taken)
        entries.append(taken if len(taken) > 1 else next(iter(taken), None))
    return PartitionSpec(*entries)


def shardings_like(shapes: PyTree, names: PyTree[Axes], rules: Rules, mesh: Mesh) -> PyTree[NamedSharding]:
    """Returns a sharding for every array of a tree, from its axis names.

    Raises:
      ConfigError: the mesh axes of a dimension do not divide it; the message names the parameter.
    """

    def place(path: KeyPath, shape: jax.ShapeDtypeStruct, names: Axes) -> NamedSharding:
        sharding = NamedSharding(mesh, spec(names, rules, mesh))
        for dim, (size, entry) in enumerate(zip(shape.shape, sharding.spec, strict=True)):
            shards = shards_of(entry, mesh)
            if size % shards:
                raise ConfigError(
                    f"params{jax.tree_util.keystr(path)} of shape {list(shape.shape)}: "
                    f"dimension {dim} ({names[dim]}) cannot be sharded over {entry} = {shards}; "
                    f"{_remedy(size, entry, shards)}; in Python, "
                    f'Placement(mesh, {{**sharding.RULES, "{names[dim]}": ()}}) shards no "{names[dim]}"'
                )
        return sharding

    return jax.tree_util.tree_map_with_path(place, shapes, names)


def _remedy(size: int, entry: MeshAxes, shards: int) -> str:
    """Returns the settings with which a dimension of this size can be sharded."""
    sizes = f"take a size that {shards} divides, such as {size + -size % shards}"
    if not isinstance(entry, str):
        return f"{sizes}, or a mesh in which the product of {entry} divides {size}"
    common = math.gcd(size, shards)
    return f"{sizes}, or a mesh with {entry}={common}" if common > 1 else f"{sizes}, or a mesh without {entry}"


def shards_of(entry: MeshAxes, mesh: Mesh) -> int:
    """Returns the number of shards of a dimension with this entry of a `PartitionSpec`."""
    return math.prod(mesh.shape[axis] for axis in mesh_axes(entry))


def mesh_axes(entry: MeshAxes) -> tuple[str, ...]:
    """Returns the mesh axes in an entry of a `PartitionSpec`."""
    return (entry,) if isinstance(entry, str) else entry or ()


def fitting(entry: MeshAxes, size: int, mesh: Mesh) -> MeshAxes:
    """Returns an entry of a `PartitionSpec` if its shards divide a dimension of this size, or else None."""
    return entry if size % shards_of(entry, mesh) == 0 else None


def state_shardings(state: PyTree, params: PyTree, optimizer: optax.GradientTransformation, mesh: Mesh) -> PyTree:
    """Returns the shardings of a `TrainState`: moments and averages are placed like parameters, the rest is replicated.

    Moments of another shape than their parameter, such as the rows and columns of Adafactor or SM3, are replicated.

    Args:
      state: shapes, from ``jax.eval_shape``.
      params: the parameters' shardings, from `shardings_like`.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    shapes = jax.tree_util.tree_leaves_with_path(state.params)
    placed = {path: (x.shape, of_x) for (path, x), of_x in zip(shapes, jax.tree.leaves(params), strict=True)}

    def place(path: KeyPath, x: jax.ShapeDtypeStruct) -> NamedSharding:
        # A parameter may have several moments (SM3) or, if it is not trained, none (MaskedNode).
        parts = (placed[path[:end]] for end in range(len(path) + 1) if path[:end] in placed)
        shape, sharding = next(parts, (None, replicated))
        return sharding if x.shape == shape else replicated

    moments = optax.tree.map_params(
        optimizer,
        lambda tree: jax.tree_util.tree_map_with_path(place, tree),
        state.optimizer,
        transform_non_params=lambda _: replicated,
        is_leaf=lambda _: True,  # a whole tree of moments
    )
    ema_params = None if state.ema_params is None else params
    return type(state)(step=replicated, params=params, optimizer=moments, ema_params=ema_params, key=replicated)


def with_axis_rules(rules: Rules, mesh: Mesh) -> Callable[[F], F]:
    """Returns a decorator for functions that call `axes.constrain`: it places their activations during tracing.

    `axes.constrain` is like `flax.linen.with_logical_constraint`; the rules are like those of
    `flax.linen.logical_axis_rules`.

    Use it inside ``jax.jit``: outside, jit would reuse a program that was compiled for another placement.
    """

    def place(x: jax.Array, names: Axes) -> jax.Array:
        entries = zip(spec(names, rules, mesh), x.shape, strict=True)
        fits = (fitting(entry, size, mesh) for entry, size in entries)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*fits)))

    def count_shards(names: Axes) -> int:
        return math.prod(shards_of(entry, mesh) for entry in spec(names, rules, mesh))

    def wrap(function: F) -> F:
        @functools.wraps(function)
        def placed(*args: object, **kwargs: object) -> object:
            with axes.placing(place, count_shards):
                return function(*args, **kwargs)

        return placed  # type: ignore[return-value]

    return wrap
