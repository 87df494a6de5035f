"""Attention biases: objects that compute, tile by tile, the term added to the logits.

Like a mask, a bias is not a ``[T, S]`` array. An implementation asks for the tile it is working on, so a positional
bias needs no memory that grows with the square of the length, and its learned tables get their gradients tile by tile.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from jaxformer.masks.algebra import take
from jaxformer.reprs import brief


class Bias:
    """A term added to the scaled logits. Biases combine with ``+``, also with arrays that broadcast to [B, N, T, S].

    To add a new kind, write a subclass that defines `tile`, and register it as a pytree
    (``jax.tree_util.register_dataclass``) whose leaves are the learned arrays.

    >>> import jax.numpy as jnp
    >>> class Ahead(Bias):
    ...     def tile(self, query, query_index, key_index):
    ...         return (key_index[None] - query_index[:, None])[None, None]
    >>> (Ahead() + Ahead().at(10)).tile(None, jnp.arange(2), jnp.arange(3))[0, 0].tolist()
    [[-10, -8, -6], [-12, -10, -8]]
    """

    __array_ufunc__ = None  # lets NumPy arrays defer to `__radd__`

    def tile(self, query: Array, query_index: Array, key_index: Array) -> Array:
        """Returns the bias at these absolute positions, ``float [b, n, t, s]`` with b in {1, B} and n in {1, N}.

        Args:
          query: the queries at `query_index`, ``[B, N, t, H]``, already multiplied by the scale of the logits.
          query_index, key_index: ``int [t]`` and ``int [s]``, each consecutive except that the last may repeat.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define tile")

    def at(self, offset: int | jax.Array) -> Bias:
        """Returns the bias for query positions that start at `offset`, as in decoding with a cache."""
        return Shifted(self, jnp.asarray(offset, jnp.int32))

    def at_positions(self, query: Array, query_positions: Array, key_positions: Array | np.ndarray) -> Bias:
        """Returns the bias of queries and keys at these absolute positions, ``int [b, T]`` and ``int [b, S]``.

        The dimension b is 1 or B. As in `tile`, the queries ``[B, N, T, H]`` are already multiplied by the scale.

        Raises:
          ValueError: the bias holds arrays with one entry for each example, and positions differ between examples.
        """
        consecutive = isinstance(key_positions, np.ndarray) and bool((np.diff(key_positions, axis=1) == 1).all())

        def one_query(query: Array, position: Array, keys: Array) -> Array:  # [B, N, H], [], [S] -> [b, n, S]
            tile = lambda keys: self.tile(query[:, :, None], position[None], keys)[:, :, 0]
            return tile(keys) if consecutive else jax.vmap(lambda key: tile(key[None])[..., 0], 0, 2)(keys)

        all_queries = jax.vmap(one_query, (2, 0, None), 2)  # [B, N, T, H], [T], [S] -> [b, n, T, S]
        key_positions = jnp.asarray(key_positions)
        if query_positions.shape[0] == key_positions.shape[0] == 1:
            return DenseBias(all_queries(query, query_positions[0], key_positions[0]))

        def one_example(query: Array, positions: Array, keys: Array) -> Array:
            result = all_queries(query[None], positions, keys)
            if result.shape[0] != 1:
                raise ValueError(
                    f"{type(self).__name__} has entries for {result.shape[0]} examples, whose positions differ"
                )
            return result[0]

        # A symbolic batch size (`jax.export`) cannot be compared with 1 by order.
        axes = tuple(None if x.shape[0] == 1 else 0 for x in (query_positions, key_positions))
        index = [x[0] if x.shape[0] == 1 else x for x in (query_positions, key_positions)]
        return DenseBias(jax.vmap(one_example, (0, *axes))(query, *index))

    def take_heads(self, first: int | jax.Array, count: int) -> Bias:
        """Returns the bias for `count` heads from `first` on, as on a device that holds only these heads.

        Its `tile` gets the queries of these heads. The default computes the tile of all heads and selects from it. A
        bias that combines queries with arrays of all heads must select from its arrays instead.
        """
        return HeadsOf(self, jnp.asarray(first, jnp.int32), count)

    def __add__(self, other: Bias | ArrayLike) -> Bias:
        return Sum(self, _as_bias(other))

    def __radd__(self, other: ArrayLike) -> Bias:
        return Sum(_as_bias(other), self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DenseBias(Bias):
    """The bias of an array ``[b, n, T, S]``, indexed by the order of queries and keys, not by their positions.

    A dimension of size 1 broadcasts.
    """

    array: jax.Array

    __repr__ = brief

    def tile(self, query, query_index, key_index):
        tile = take(take(self.array, query_index, 2), key_index, 3)
        if jnp.issubdtype(tile.dtype, jnp.floating):  # the gradient of broadcasting would be summed in this dtype
            tile = tile.astype(np.promote_types(tile.dtype, np.float32))
        return jnp.broadcast_to(tile, (*tile.shape[:2], query_index.shape[0], key_index.shape[0]))

    def at_positions(self, query, query_positions, key_positions):
        return self


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sum(Bias):
    """The sum of two biases."""

    left: Bias
    right: Bias

    __repr__ = brief

    def tile(self, query, query_index, key_index):
        return self.left.tile(query, query_index, key_index) + self.right.tile(query, query_index, key_index)

    def at_positions(self, query, query_positions, key_positions):
        return Sum(*(x.at_positions(query, query_positions, key_positions) for x in (self.left, self.right)))

    def take_heads(self, first, count):
        return Sum(self.left.take_heads(first, count), self.right.take_heads(first, count))


def with_four_dims(array: ArrayLike) -> Array:
    """Adds leading dimensions of size 1, so that an array has the four dimensions of [B, N, T, S]."""
    array = jnp.asarray(array)  # a tile of a NumPy array has a traced index
    if array.dtype == bool:
        raise ValueError(f"a bias is added to the logits, got bool {list(array.shape)}; a Boolean array is a mask")
    if jnp.issubdtype(array.dtype, jnp.integer):
        array = array.astype(jnp.float32)
    return array.reshape(*(1,) * (4 - array.ndim), *array.shape)


def _as_bias(bias: Bias | ArrayLike) -> Bias:
    return bias if isinstance(bias, Bias) else DenseBias(with_four_dims(bias))


def terms(bias: Bias) -> list[Bias]:
    """Returns the biases of a sum."""
    return [*terms(bias.left), *terms(bias.right)] if isinstance(bias, Sum) else [bias]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Repeated(Bias):
    """A bias for keys that share positions in groups of `count`, as in a cache with lanes."""

    bias: Bias
    count: int = dataclasses.field(metadata={"static": True})

    __repr__ = brief

    def at_positions(self, query, query_positions, key_positions):
        one_of_each = key_positions[:, :: self.count]
        placed = self.bias.at_positions(query, query_positions, one_of_each)
        tile = placed.tile(query, jnp.arange(query.shape[2]), jnp.arange(one_of_each.shape[1]))
        return DenseBias(jnp.repeat(tile, self.count, axis=3))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shifted(Bias):
    """A bias whose query positions start at `offset`."""

    bias: Bias
    offset: jax.Array

    __repr__ = brief

    def tile(self, query, query_index, key_index):
        return self.bias.tile(query, query_index + self.offset, key_index)

    def take_heads(self, first, count):
        return Shifted(self.bias.take_heads(first, count), self.offset)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HeadsOf(Bias):
    """The part of a bias that belongs to `count` heads from `first` on."""

    bias: Bias
    first: jax.Array
    count: int = dataclasses.field(metadata={"static": True})

    __repr__ = brief

    def tile(self, query, query_index, key_index):
        tile = self.bias.tile(query, query_index, key_index)
        return tile if tile.shape[1] == 1 else jax.lax.dynamic_slice_in_dim(tile, self.first, self.count, 1)


def dense_bias(
    bias: Bias | Array,
    query: Float[Array, "B T N H"],
    num_keys: int,
    scale: float,
    rows: Array | None = None,
    allowed: Bool[Array, "_ _ _ _"] | None = None,
) -> Float[Array, "b n t s"]:
    """Returns the bias for the queries at `rows` (all by default) and for every key, as an array.

    Queries without a key in `allowed`, the mask of these rows, are replaced by 0: they may hold NaN, and 0 times NaN
    would reach the gradients of the bias.
    """
    one_tile = rows is None and query.shape[1] != 0  # consecutive positions; a tile has at least one query
    if rows is None:
        rows = jnp.arange(query.shape[1])
    if not isinstance(bias, Bias):
        return take(bias, rows, 2)
    if num_keys == 0:  # a tile has at least one key
        return jnp.zeros((1, 1, rows.shape[0], 0), jnp.float32)
    scaled = query.transpose(0, 2, 1, 3)[:, :, rows].astype(jnp.float32) * scale
    if allowed is not None:
        scaled = jnp.where(allowed.any(3)[..., None], scaled, 0)
    if one_tile:
        return bias.tile(scaled, rows, jnp.arange(num_keys))
    # Each row is computed separately because the chosen rows need not be consecutive.
    row_bias = lambda row, index: bias.tile(row[:, :, None], index[None], jnp.arange(num_keys))[:, :, 0]
    return jax.vmap(row_bias, (2, 0), 2)(scaled, rows)
