"""The kinds of masks: bands, lengths, padding, segments and sparse blocks, with the functions that make them."""

from __future__ import annotations

import dataclasses

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxformer.masks.algebra import UNBOUNDED, IndexedMask, Mask
from jaxformer.reprs import brief

_static = {"static": True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Band(Mask):
    """Allows keys from `before` positions behind the query to `after` positions ahead of it; None for no limit."""

    before: int | None = dataclasses.field(metadata=_static)
    after: int | None = dataclasses.field(metadata=_static)

    def tile(self, query_index, key_index):
        ahead = key_index[None, :] - query_index[:, None]
        allowed = jnp.ones(ahead.shape, bool)
        if self.before is not None:
            allowed &= ahead >= -self.before
        if self.after is not None:
            allowed &= ahead <= self.after
        return allowed[None, None]

    def key_range(self, query_start, query_stop):
        start = 0 if self.before is None else max(0, query_start - self.before)
        stop = UNBOUNDED if self.after is None else max(0, query_stop + self.after)
        return start, stop


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CausalAt(Mask):
    """The `causal` mask with an offset that is a scalar array, known only at run time."""

    offset: jax.Array

    __repr__ = brief

    def tile(self, query_index, key_index):
        return (key_index[None, :] <= query_index[:, None] + self.offset)[None, None]

    def live_ranges(self, query_start, query_stop):
        stop = jnp.asarray(query_stop, jnp.int32)[:, None] + self.offset.astype(jnp.int32)
        return jnp.zeros_like(stop), stop


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lengths(IndexedMask):
    """Allows the first `length` keys of each example."""

    length: jax.Array

    __repr__ = brief

    def tile(self, query_index, key_index):
        return (key_index[None, :] < jnp.atleast_1d(self.length)[:, None])[:, None, None, :]

    def live_ranges(self, query_start, query_stop):
        stop = jnp.atleast_1d(self.length).astype(jnp.int32)[None]
        return jnp.zeros_like(stop), stop


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prefix(Lengths):
    """Allows the keys at positions below each example's `length`, for any order in which keys are stored."""

    def at_positions(self, query, key):
        return Mask.at_positions(self, query, key)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Padding(IndexedMask):
    """Allows the keys that are valid."""

    valid: jax.Array

    __repr__ = brief

    def tile(self, query_index, key_index):
        return jnp.atleast_2d(self.valid)[:, None, None, :][..., key_index]

    def check(self, num_queries, num_keys):
        _check_length("padding covers S", self.valid.shape[-1], num_keys)

    def live_ranges(self, query_start, query_stop):
        return _ends(jnp.atleast_2d(self.valid)[None])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments(IndexedMask):
    """Allows keys of the same segment as the query, for several sequences packed into one row."""

    query: jax.Array
    key: jax.Array

    __repr__ = brief

    def tile(self, query_index, key_index):
        query, key = jnp.atleast_2d(self.query), jnp.atleast_2d(self.key)
        same = query[:, query_index][:, :, None] == key[:, key_index][:, None, :]
        return same[:, None]

    def check(self, num_queries, num_keys):
        _check_length("segments cover T", self.query.shape[-1], num_queries)
        _check_length("segments cover S", self.key.shape[-1], num_keys)

    def live_ranges(self, query_start, query_stop):
        """Returns the keys between the smallest and the largest segment of the queries; tight for ordered segments."""
        position = np.arange(self.query.shape[-1])
        inside = ((query_start[:, None] <= position) & (position < query_stop[:, None]))[:, None]
        query, key = jnp.atleast_2d(self.query)[None], jnp.atleast_2d(self.key)[None]
        smallest = jnp.where(inside, query, query.max(2, keepdims=True)).min(2, keepdims=True)
        largest = jnp.where(inside, query, query.min(2, keepdims=True)).max(2, keepdims=True)
        return _ends((smallest <= key) & (key <= largest))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockSparse(IndexedMask):
    """Allows or masks full blocks of pairs; the layout is static, so masked blocks can be skipped."""

    layout: tuple[tuple[bool, ...], ...] = dataclasses.field(metadata=_static)
    size: int = dataclasses.field(metadata=_static)

    __repr__ = brief

    def tile(self, query_index, key_index):
        return jnp.asarray(self.layout)[query_index // self.size][:, key_index // self.size][None, None]

    def check(self, num_queries, num_keys):
        for name, got, expected in (("T", len(self.layout), num_queries), ("S", len(self.layout[0]), num_keys)):
            if -(-expected // self.size) != got:
                count = -(-expected // self.size)
                raise ValueError(f"layout must have {count} blocks of {self.size} for {name} = {expected}, got {got}")

    def key_range(self, query_start, query_stop):
        rows = self.layout[query_start // self.size : -(-query_stop // self.size)]
        columns = [i for row in rows for i, allowed in enumerate(row) if allowed]
        return (min(columns) * self.size, (max(columns) + 1) * self.size) if columns else (0, 0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stored(IndexedMask):
    """Applies a mask to the indices at which queries and keys are stored, for any positions."""

    mask: Mask

    __repr__ = brief

    @property
    def finite(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mask.finite

    def tile(self, query_index, key_index):
        return self.mask.tile(query_index, key_index)

    def check(self, num_queries, num_keys):
        self.mask.check(num_queries, num_keys)

    def key_range(self, query_start, query_stop):
        return self.mask.key_range(query_start, query_stop)

    def live_ranges(self, query_start, query_stop):
        return self.mask.live_ranges(query_start, query_stop)


def _ends(live: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the indices of the first True and past the last in each row of ``Bool [q, b, S]``; 0 and 0 if none."""
    stop = live.shape[2] - live[..., ::-1].argmax(2)
    return live.argmax(2).astype(jnp.int32), jnp.where(live.any(2), stop, 0).astype(jnp.int32)


def _check_length(name: str, got: int, expected: int) -> None:
    if got != expected:
        raise ValueError(f"{name} = {got}, but queries and keys have {expected}")


def causal(offset: int | jax.Array = 0) -> Mask:
    """Allows a query at position t to see keys ``0 .. t + offset``; with a cache, `offset` is the cached length.

    >>> causal().dense(3, 3)[0, 0].astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    if isinstance(offset, int | np.integer):
        return Band(None, int(offset))
    offset = jnp.asarray(offset)
    if offset.ndim != 0 or not jnp.issubdtype(offset.dtype, jnp.integer):
        raise ValueError(
            f"offset must be one integer for all examples, int [], got {offset.dtype} {list(offset.shape)}"
        )
    return CausalAt(offset)


def window(before: int, after: int = 0) -> Mask:
    """Allows a query to see itself, `before` keys behind it and `after` keys ahead of it (restricted attention).

    Raises:
      ValueError: a number is negative.
      TypeError: a number is a traced value.

    >>> window(1).dense(4, 4)[0, 0].astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    if isinstance(before, jax.core.Tracer) or isinstance(after, jax.core.Tracer):
        raise TypeError("before and after must be known at trace time; see static_argnums of jax.jit")
    if before < 0 or after < 0:
        raise ValueError(f"before and after must be at least 0, got before={before}, after={after}")
    return Band(before, after)


def prefix(length: ArrayLike) -> Mask:
    """Allows all queries to see the positions before `length`, ``int [B]``, as in a prefix language model.

    One integer, ``int []``, is the length for all examples of a batch.

    >>> (causal() | prefix([2])).dense(3, 3)[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    >>> prefix(2).dense(1, 3).shape
    (1, 1, 1, 3)
    """
    return Prefix(_per_example(length))


def lengths(length: ArrayLike) -> Mask:
    """Allows the first `length` stored keys of each example, ``int [B]``, for any positions.

    One integer, ``int []``, is the length for all examples of a batch.

    >>> lengths([2, 1]).dense(1, 3)[:, 0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 0, 0]]
    """
    return Lengths(_per_example(length))


def _per_example(length: ArrayLike) -> jax.Array:
    length = jnp.asarray(length)
    if length.ndim > 1 or not jnp.issubdtype(length.dtype, jnp.integer):
        raise ValueError(
            "length must be one integer per example, int [B], or one for all, int [], "
            f"got {length.dtype} {list(length.shape)}"
        )
    return length.reshape(-1)


def padding(valid: ArrayLike) -> Mask:
    """Allows the keys that are True in ``Bool [B, S]``; only keys are masked, so padded queries still have rows.

    ``Bool [S]`` applies to all examples of a batch, and to `attention_head`, which has one.

    >>> padding([[True, True, False]]).dense(2, 3)[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0]]
    >>> padding([True, True, False]).dense(2, 3).shape
    (1, 1, 2, 3)
    """
    valid = jnp.asarray(valid)
    if valid.ndim not in (1, 2) or valid.dtype != bool:
        hint = "; pass valid == 1 for numbers 0 and 1" if valid.dtype != bool else ""
        if valid.ndim == 1 and hint:
            hint = "; masks.lengths takes the number of tokens of each example"
        got = f"{valid.dtype} {list(valid.shape)}{hint}"
        raise ValueError(f"valid must be Bool [B, S] or [S], True = real token, got {got}")
    return Padding(jnp.atleast_2d(valid))


def segments(query: ArrayLike, key: ArrayLike | None = None) -> Mask:
    """Allows a query to see keys of its segment, from ``int [B, T]`` and ``int [B, S]`` (by default, the same).

    >>> segments([[1, 1, 2]]).dense(3, 3)[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    query = jnp.asarray(query)
    key = query if key is None else jnp.asarray(key)
    if query.ndim != 2 or key.ndim != 2 or query.shape[0] != key.shape[0]:
        raise ValueError(f"segments must be [B, T] and [B, S], got {list(query.shape)} and {list(key.shape)}")
    return Segments(query, key)


def stored(mask: Mask) -> Mask:
    """Applies `mask` to the indices of queries and keys in their rows, even if their positions are given too.

    >>> positions = np.array([[0, 1, 0]])  # two texts in a row; by position, the first token sees the third
    >>> both = [x.at_positions(positions, positions).dense(3, 3) for x in (causal(), stored(causal()))]
    >>> [x[0, 0, 0].astype(int).tolist() for x in both]
    [[1, 0, 1], [1, 0, 0]]
    """
    return Stored(mask)


def block_sparse(layout: ArrayLike, size: int) -> Mask:
    """Allows blocks of `size` by `size` pairs; the layout ``Bool [blocks of T, blocks of S]`` must be static.

    Child et al. 2019 ("Sparse Transformers"). Blockwise attention skips the blocks outside the range of each row.

    >>> block_sparse([[True, False], [True, True]], 2).dense(4, 3)[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]
    """
    array = np.asarray(layout)
    if array.ndim != 2 or array.dtype != bool or array.size == 0 or size < 1:
        raise ValueError(
            f"layout must be Bool of rank 2 and size at least 1, got {array.dtype} {list(array.shape)} and {size}"
        )
    return BlockSparse(tuple(tuple(bool(x) for x in row) for row in array), size)
