"""The notation of the library: array shapes, logical axis names, names of parameters, and the hook for placement.

Every signature of the library uses the same letters::

    B batch               T query (target) length     S key (source) length
    N query heads         K key heads; in decoding, hypotheses
    G = N / K             H head dim                  J value dim
    D model dim           F feed-forward dim          V vocabulary
    L layers              W window
    E experts             C capacity of an expert

Arrays of heads are laid out ``[B, T, N, H]``. Each dimension of a parameter or an activation also has a *logical
axis name*. A table of rules (``jaxformer.sharding``) maps those names to the axes of a device mesh. Models name
dimensions and never place them: with no rules active, `constrain` is the identity.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias, TypeVar

import jax
import jax.core

AxisName: TypeAlias = Literal[
    "batch",
    "length",
    "memory_length",
    "layers",
    "model",
    "heads",
    "kv",
    "head_dim",
    "hidden",
    "experts",
    "vocab",
    "position",
]
"""A logical axis name. ``"kv"`` is the (short) dimension along which fused projections are stacked."""

Axes: TypeAlias = tuple[AxisName | None, ...]
"""One name for each dimension of an array; None for a dimension that is never sharded."""

Place: TypeAlias = Callable[[jax.Array, Axes], jax.Array]
"""A function that places an array whose dimensions have these names."""

CountShards: TypeAlias = Callable[[Axes], int]
"""A function that returns the number of shards of an array whose dimensions have these names."""

TreeT = TypeVar("TreeT")

UNPLACED: tuple[Place, CountShards] = (lambda x, names: x), (lambda names: 1)
"""The placement with no rules active."""
_active: contextvars.ContextVar[tuple[Place, CountShards]] = contextvars.ContextVar("place", default=UNPLACED)


def constrain(x: jax.Array, *names: AxisName | None) -> jax.Array:
    """Names the dimensions of an activation, so that an active rule table can place it; the identity without one.

    Raises:
      ValueError: the number of names differs from the rank of `x`.
    """
    if len(names) != x.ndim:
        raise ValueError(f"constrain must get one axis name for each dimension, got {names} for shape {x.shape}")
    return _active.get()[0](x, names)


def placed() -> bool:
    """Returns True if a rule table is active, so that activations may be sharded in any dimension."""
    return _active.get() is not UNPLACED


def num_shards(*names: AxisName) -> int:
    """Returns the number of shards of an array of these dimensions by the active rule table; 1 without one."""
    return _active.get()[1](names)


def parameter_name(path: jax.tree_util.KeyPath) -> str:
    """Returns the path of a parameter as text, such as "encoder/norm/scale".

    In an ``nnx.State``, such as ``nnx.Optimizer`` has, the last key is the attribute of a variable, and left out.

    >>> [parameter_name(path) for path, _ in jax.tree_util.tree_leaves_with_path({"norm": {"bias": 1, "scale": 2}})]
    ['norm/bias', 'norm/scale']
    """
    if path[-1:] == (jax.tree_util.GetAttrKey("value"),):
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator="/")


@contextlib.contextmanager
def placing(place: Place, count_shards: CountShards = lambda names: 1) -> Iterator[None]:
    """Lets `place` place activations in functions that are traced inside, and `count_shards` answer `num_shards`."""
    token = _active.set((place, count_shards))
    try:
        yield
    finally:
        _active.reset(token)


def vary_alike(arrays: TreeT) -> TreeT:
    """Returns a tree of arrays that all vary over every mesh axis over which any of them varies.

    Inside ``jax.shard_map``, the carry of a loop must vary over the axes of what is added to it, and a gradient over
    the axes of its primal. Anywhere else, and with ``check_vma=False``, arrays are returned unchanged.

    >>> mesh = jax.sharding.Mesh(jax.devices()[:1], "data")
    >>> rows = jax.sharding.PartitionSpec("data")
    >>> last = lambda x: jax.lax.scan(lambda carry, x: (carry + x, None), *vary_alike((jax.numpy.zeros(2), x)))[0]
    >>> jax.shard_map(last, mesh=mesh, in_specs=rows, out_specs=rows)(jax.numpy.ones((3, 2))).tolist()
    [3.0, 3.0]
    """
    over = lambda x: jax.typeof(x).manual_axis_type.varying
    varying = frozenset[str]().union(*(over(x) for x in jax.tree.leaves(arrays) if isinstance(x, jax.Array)))

    def vary(x: object) -> object:
        if not isinstance(x, jax.Array) or jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            return x
        missing = tuple(sorted(varying - over(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(vary, arrays) if varying else arrays


def has_known_values(*arrays: object) -> bool:
    """Returns True if the values of arrays can be read here: none is traced, or partly on other processes' devices.

    >>> has_known_values(jax.numpy.ones(2), None)
    True
    >>> jax.vmap(lambda x: x + int(has_known_values(x)))(jax.numpy.arange(2)).tolist()
    [0, 1]
    """
    return not any(isinstance(x, jax.core.Tracer) or not getattr(x, "is_fully_addressable", True) for x in arrays)
