"""Attention masks: a small algebra of values that say which query may attend to which key.

True means *attend*.  A mask is not an array: it is asked for the tile it covers, so that a kernel can build the
``[T, S]`` square piece by piece and skip the blocks that `Mask.key_range` rules out beforehand, and
`Mask.live_ranges` when the program runs::

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

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxformer.masks.algebra import UNBOUNDED as UNBOUNDED
from jaxformer.masks.algebra import And as And
from jaxformer.masks.algebra import Dense as Dense
from jaxformer.masks.algebra import Mask as Mask
from jaxformer.masks.algebra import Not as Not
from jaxformer.masks.algebra import Or as Or
from jaxformer.masks.algebra import as_mask as as_mask
from jaxformer.masks.algebra import dense as dense
from jaxformer.masks.algebra import from_torch as from_torch

_static = {"static": True}


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
    """`causal` with an offset that is an array, of rank 0: known only when the program runs."""

    offset: jax.Array

    def tile(self, query_index, key_index):
        return (key_index[None, :] <= query_index[:, None] + self.offset)[None, None]

    def live_ranges(self, query_start, query_stop):
        stop = jnp.asarray(query_stop, jnp.int32)[:, None] + self.offset.astype(jnp.int32)
        return jnp.zeros_like(stop), stop


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lengths(Mask):
    """The first `length` keys of each example."""

    length: jax.Array

    def tile(self, query_index, key_index):
        del query_index
        return (key_index[None, :] < self.length[:, None])[:, None, None, :]

    def live_ranges(self, query_start, query_stop):
        stop = self.length.astype(jnp.int32)[None]
        return jnp.zeros_like(stop), stop


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

    def live_ranges(self, query_start, query_stop):
        return _ends(self.valid[None])


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

    def live_ranges(self, query_start, query_stop):
        """Of the keys between the least and the greatest segment of the queries: tight where segments are in order."""
        place = np.arange(self.query.shape[1])
        inside = ((query_start[:, None] <= place) & (place < query_stop[:, None]))[:, None]
        query, key = self.query[None], self.key[None]
        least = jnp.where(inside, query, query.max(2, keepdims=True)).min(2, keepdims=True)
        greatest = jnp.where(inside, query, query.min(2, keepdims=True)).max(2, keepdims=True)
        return _ends((least <= key) & (key <= greatest))


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


def _ends(live: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first True and one past the last of each row, ``Bool [q, b, S]``; 0 and 0 where there is none."""
    stop = live.shape[2] - live[..., ::-1].argmax(2)
    return live.argmax(2).astype(jnp.int32), jnp.where(live.any(2), stop, 0).astype(jnp.int32)


def _check_length(what: str, got: int, expected: int) -> None:
    if got != expected:
        raise ValueError(f"{what} = {got}, but queries and keys have {expected}")


def causal(offset: int | jax.Array = 0) -> Mask:
    """A query at position t sees the keys ``0 .. t + offset``.  With a cache, `offset` is what was cached before.

    >>> causal().dense(3, 3)[0, 0].astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    if isinstance(offset, int):
        return Band(None, int(offset))
    offset = jnp.asarray(offset)
    if offset.ndim != 0 or not jnp.issubdtype(offset.dtype, jnp.integer):
        raise ValueError(f"causal expects one offset for all examples, int []; got {offset.dtype} {list(offset.shape)}")
    return CausalAt(offset)


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
