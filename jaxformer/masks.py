"""Attention masks: a small algebra of values that say which query may attend to which key.

True means *attend*.  A mask is not an array: it is asked for the tile it covers, so that a kernel can build the
``[T, S]`` square piece by piece and skip the blocks that `Mask.key_range` rules out::

    mask = causal() & padding(tokens != pad)      # a decoder over a padded batch
    mask = causal() | prefix(lengths)             # a prefix language model
    mask.dense(T, S)                              # Bool [b, n, T, S], b in {1, B}, n in {1, N}

**The empty-row contract**, kept by every attention implementation in this library and in every dtype:

(a) a query that may attend to no key gets output 0, weights 0 and gradient 0;
(b) a key that no query of its example may attend to is inert: whatever its key and value hold, NaN and infinity
    included, every output and every other gradient is unchanged bit for bit, and its own gradient is 0;
(c) at any masked pair with finite contents the weight is exactly 0.

Not promised: a NaN that *some* query may see staying out of the rows that may not see it.

The functions below raise `ValueError` for a rank, a dtype or a number that is none of theirs, and say what they got.
"""

from __future__ import annotations

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

UNBOUNDED = sys.maxsize
"""`Mask.key_range` stops here when nothing rules out later keys."""

_static = {"static": True}


class Mask:
    """Which queries may attend to which keys.  Combine with ``&``, ``|`` and ``~``.

    A new kind of mask is a subclass that defines `tile`, and `key_range` where it can rule keys out; register it
    as a pytree (``jax.tree_util.register_dataclass``) so that it passes through ``jit``, ``scan`` and ``grad``.

    >>> (causal() & ~window(0)).dense(3, 3)[0, 0].astype(int).tolist()
    [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    """

    __array_ufunc__ = None
    """Makes ``array & mask`` ask the mask, not loop over the elements of a NumPy array."""

    def tile(self, query_index: jax.Array, key_index: jax.Array) -> jax.Array:
        """The mask at these absolute positions: ``int [t], int [s] -> Bool [b, n, t, s]``, b in {1, B}, n in {1, N}.

        Where all queries are alike, t may be 1.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define tile")

    def key_range(self, query_start: int, query_stop: int) -> tuple[int, int]:
        """A static range that holds every key which queries ``[query_start, query_stop)`` may attend to."""
        del query_start, query_stop
        return 0, UNBOUNDED

    def check(self, num_queries: int, num_keys: int) -> None:
        """Refuses lengths the mask was not made for; a gather clamps, so `tile` would not notice.

        Raises:
          ValueError: with the lengths covered and the lengths expected.
        """
        del num_queries, num_keys

    def dense(self, num_queries: int, num_keys: int) -> jax.Array:
        """The whole mask, ``Bool [b, n, T, S]``, after `check`."""
        self.check(num_queries, num_keys)
        tile = self.tile(jnp.arange(num_queries), jnp.arange(num_keys))
        return jnp.broadcast_to(tile, (*tile.shape[:2], num_queries, num_keys))

    def additive(self, num_queries: int, num_keys: int, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
        """The additive view: 0 where a query may attend, minus infinity elsewhere; ``[b, n, T, S]``."""
        return jnp.where(self.dense(num_queries, num_keys), 0, -jnp.inf).astype(dtype)

    def __and__(self, other: Mask | ArrayLike) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Mask | ArrayLike) -> Mask:
        return Or(self, as_mask(other))

    def __rand__(self, other: ArrayLike) -> Mask:
        return And(as_mask(other), self)

    def __ror__(self, other: ArrayLike) -> Mask:
        return Or(as_mask(other), self)

    def __invert__(self) -> Mask:
        return Not(self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class And(Mask):
    """A pair that both masks allow."""

    left: Mask
    right: Mask

    def tile(self, query_index, key_index):
        return self.left.tile(query_index, key_index) & self.right.tile(query_index, key_index)

    def check(self, num_queries, num_keys):
        self.left.check(num_queries, num_keys)
        self.right.check(num_queries, num_keys)

    def key_range(self, query_start, query_stop):
        left, right = (m.key_range(query_start, query_stop) for m in (self.left, self.right))
        return max(left[0], right[0]), min(left[1], right[1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Or(Mask):
    """A pair that either mask allows; the range is the hull of both."""

    left: Mask
    right: Mask

    def tile(self, query_index, key_index):
        return self.left.tile(query_index, key_index) | self.right.tile(query_index, key_index)

    def check(self, num_queries, num_keys):
        self.left.check(num_queries, num_keys)
        self.right.check(num_queries, num_keys)

    def key_range(self, query_start, query_stop):
        left, right = (m.key_range(query_start, query_stop) for m in (self.left, self.right))
        return min(left[0], right[0]), max(left[1], right[1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Not(Mask):
    """A pair that the mask forbids.  Gives up skipping: the complement of a range is no range."""

    mask: Mask

    def tile(self, query_index, key_index):
        return ~self.mask.tile(query_index, key_index)

    def check(self, num_queries, num_keys):
        self.mask.check(num_queries, num_keys)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Band(Mask):
    """Keys from `before` places back to `after` places ahead of the query; None is no limit."""

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
    """`causal` with an offset that is an array: known only when the program runs, so no block is skipped."""

    offset: jax.Array

    def tile(self, query_index, key_index):
        return (key_index[None, :] <= query_index[:, None] + self.offset)[None, None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lengths(Mask):
    """The first `length` keys of each example."""

    length: jax.Array

    def tile(self, query_index, key_index):
        del query_index
        return (key_index[None, :] < self.length[:, None])[:, None, None, :]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Padding(Mask):
    """The keys marked as real."""

    valid: jax.Array

    def tile(self, query_index, key_index):
        del query_index
        return self.valid[:, None, None, :][..., key_index]

    def check(self, num_queries, num_keys):
        _check_length("padding covers S", self.valid.shape[1], num_keys)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments(Mask):
    """Keys of the same segment as the query: several sequences packed into one row."""

    query: jax.Array
    key: jax.Array

    def tile(self, query_index, key_index):
        same = self.query[:, query_index][:, :, None] == self.key[:, key_index][:, None, :]
        return same[:, None]

    def check(self, num_queries, num_keys):
        _check_length("segments cover T", self.query.shape[1], num_queries)
        _check_length("segments cover S", self.key.shape[1], num_keys)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dense(Mask):
    """Any array, ``Bool [b, n, T, S]``."""

    array: jax.Array

    def tile(self, query_index, key_index):
        rows = self.array if self.array.shape[2] == 1 else self.array[:, :, query_index]
        tile = rows if rows.shape[3] == 1 else rows[..., key_index]
        return jnp.broadcast_to(tile, (*tile.shape[:2], query_index.shape[0], key_index.shape[0]))

    def check(self, num_queries, num_keys):
        got, expected = self.array.shape[2:], (num_queries, num_keys)
        if any(g not in (1, e) for g, e in zip(got, expected, strict=True)):
            raise ValueError(f"mask covers [T, S] = {list(got)}, but queries and keys have {list(expected)}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockSparse(Mask):
    """Whole blocks of pairs, allowed or not; a static layout, so that what it rules out is not visited."""

    layout: tuple[tuple[bool, ...], ...] = dataclasses.field(metadata=_static)
    size: int = dataclasses.field(metadata=_static)

    def tile(self, query_index, key_index):
        return jnp.asarray(self.layout)[query_index // self.size][:, key_index // self.size][None, None]

    def check(self, num_queries, num_keys):
        for name, got, expected in (("T", len(self.layout), num_queries), ("S", len(self.layout[0]), num_keys)):
            if -(-expected // self.size) != got:
                raise ValueError(f"layout has {got} blocks of {self.size} for {name} = {expected}")

    def key_range(self, query_start, query_stop):
        rows = self.layout[query_start // self.size : -(-query_stop // self.size)]
        columns = [i for row in rows for i, allowed in enumerate(row) if allowed]
        return (min(columns) * self.size, (max(columns) + 1) * self.size) if columns else (0, 0)


def _check_length(what: str, got: int, expected: int) -> None:
    if got != expected:
        raise ValueError(f"{what} = {got}, but queries and keys have {expected}")


def causal(offset: int | jax.Array = 0) -> Mask:
    """A query at position t sees the keys ``0 .. t + offset``.  With a cache, `offset` is what was cached before.

    >>> causal().dense(3, 3)[0, 0].astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return Band(None, int(offset)) if isinstance(offset, int) else CausalAt(jnp.asarray(offset))


def window(before: int, after: int = 0) -> Mask:
    """A query sees itself, the `before` keys behind it and the `after` keys ahead: restricted attention.

    >>> window(1).dense(4, 4)[0, 0].astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    if before < 0 or after < 0:
        raise ValueError(f"window expects counts of keys >= 0, got before={before}, after={after}")
    return Band(before, after)


def prefix(length: ArrayLike) -> Mask:
    """Every query sees the first `length` keys, ``int [B]``; ``causal() | prefix(n)`` is a prefix language model.

    >>> (causal() | prefix([2])).dense(3, 3)[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    return lengths(length)


def lengths(length: ArrayLike) -> Mask:
    """The first `length` keys of each example, ``int [B]``, are real.

    >>> lengths([2, 1]).dense(1, 3)[:, 0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 0, 0]]
    """
    length = jnp.asarray(length)
    if length.ndim != 1 or not jnp.issubdtype(length.dtype, jnp.integer):
        raise ValueError(f"lengths expects one count per example, int [B]; got {length.dtype} {list(length.shape)}")
    return Lengths(length)


def padding(valid: ArrayLike) -> Mask:
    """Keys marked True in ``Bool [B, S]`` are real; only keys are masked, padded queries still give rows.

    >>> padding([[True, True, False]]).dense(2, 3)[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0]]
    """
    valid = jnp.asarray(valid)
    if valid.ndim != 2 or valid.dtype != bool:
        raise ValueError(f"padding expects Bool [B, S], True = real; got {valid.dtype} {list(valid.shape)}")
    return Padding(valid)


def segments(query: ArrayLike, key: ArrayLike | None = None) -> Mask:
    """A query of segment i sees the keys of segment i: ``int [B, T]`` and ``int [B, S]`` (default: the queries').

    >>> segments([[1, 1, 2]]).dense(3, 3)[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    query = jnp.asarray(query)
    key = query if key is None else jnp.asarray(key)
    if query.ndim != 2 or key.ndim != 2 or query.shape[0] != key.shape[0]:
        raise ValueError(f"segments expects [B, T] and [B, S], got {list(query.shape)} and {list(key.shape)}")
    return Segments(query, key)


def block_sparse(layout: ArrayLike, size: int) -> Mask:
    """Blocks of `size` by `size` pairs, ``Bool [blocks of T, blocks of S]`` known before the program runs.

    Child et al. 2019 ("Sparse Transformers").  Blockwise attention skips what lies outside the range of a row's blocks.

    >>> block_sparse([[True, False], [True, True]], 2).dense(4, 3)[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]
    """
    array = np.asarray(layout)
    if array.ndim != 2 or array.dtype != bool or array.size == 0 or size < 1:
        raise ValueError(f"expected a Boolean layout of rank 2 and a size, got {array.dtype} {array.shape}, {size}")
    return BlockSparse(tuple(tuple(bool(x) for x in row) for row in array), size)


def dense(array: ArrayLike) -> Mask:
    """Any Boolean array, ``[T, S]``, ``[B, T, S]`` or ``[B, N, T, S]`` (1 broadcasts), True = attend.

    >>> dense([[True, False]]).dense(2, 2)[0, 0].astype(int).tolist()
    [[1, 0], [1, 0]]
    """
    array = jnp.asarray(array)
    if array.dtype != bool or array.ndim not in (2, 3, 4):
        raise ValueError(f"expected a Boolean mask of rank 2, 3 or 4, got {array.dtype} {list(array.shape)}")
    shape = {2: (1, 1), 3: (array.shape[0], 1), 4: array.shape[:2]}[array.ndim]
    return Dense(array.reshape(*shape, *array.shape[-2:]))


def from_torch(array: ArrayLike) -> Mask:
    """A mask in the polarity of ``torch.nn.MultiheadAttention``, where True means *masked out*.

    >>> from_torch([[False, True]]).dense(1, 2)[0, 0].astype(int).tolist()
    [[1, 0]]
    """
    array = jnp.asarray(array)
    if array.dtype != bool:
        raise ValueError(f"expected a Boolean mask, got {array.dtype}; additive masks: dense(array == 0)")
    return dense(~array)


def as_mask(mask: Mask | ArrayLike) -> Mask:
    """A mask from a mask or from a Boolean array (see `dense`).

    >>> as_mask([[True, False]]).dense(1, 2)[0, 0].astype(int).tolist(), as_mask(causal()) == causal()
    ([[1, 0]], True)
    """
    return mask if isinstance(mask, Mask) else dense(mask)
