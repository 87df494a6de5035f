"""What every mask can be asked, how masks combine, and the mask that is an array."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

UNBOUNDED = sys.maxsize
"""`Mask.key_range` stops here when nothing rules out later keys."""


class Mask:
    """Which queries may attend to which keys.  Combine with ``&``, ``|`` and ``~``.

    A new kind of mask is a subclass that defines `tile`, and `key_range` where it can rule keys out; register it
    as a pytree (``jax.tree_util.register_dataclass``) so that it passes through ``jit``, ``scan`` and ``grad``.

    >>> from jaxformer.masks import causal, window
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

    def live_ranges(self, query_start: np.ndarray, query_stop: np.ndarray) -> tuple[jax.Array, jax.Array] | None:
        """What the data rule out: of blocks of queries, a range per example that holds every key they may attend to.

        ``int [q], int [q] -> int32 [q or 1, b], int32 [q or 1, b]``, from and up to, b in {1, B}; None where the data
        say nothing.  What `key_range` says need not be said again.

        >>> from jaxformer.masks import padding
        >>> [x.tolist() for x in padding([[False, True, True, False]]).live_ranges(np.array([0]), np.array([4]))]
        [[[1]], [[3]]]
        """
        del query_start, query_stop
        return None

    def ranges(self, query_start: np.ndarray, query_stop: np.ndarray) -> tuple[Any, Any]:
        """What `key_range` and `live_ranges` leave of the keys, shaped like the latter.

        Arrays of NumPy, ``int32 [q, 1]``, where the data say nothing.

        >>> from jaxformer.masks import lengths, window
        >>> [x.tolist() for x in (window(1) & lengths([6])).ranges(np.array([0, 4]), np.array([4, 8]))]
        [[[0], [3]], [[4], [6]]]
        """
        known = [self.key_range(int(start), int(stop)) for start, stop in zip(query_start, query_stop, strict=True)]
        known = np.clip(known, 0, np.iinfo(np.int32).max).astype(np.int32).T[..., None]
        live = self.live_ranges(query_start, query_stop)
        if live is None:
            return known[0], known[1]
        return jnp.maximum(known[0], live[0]), jnp.minimum(known[1], live[1])

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

    def live_ranges(self, query_start, query_stop):
        left, right = (m.ranges(query_start, query_stop) for m in (self.left, self.right))
        if isinstance(left[0], np.ndarray) and isinstance(right[0], np.ndarray):
            return None
        return jnp.maximum(left[0], right[0]), jnp.minimum(left[1], right[1])


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

    def live_ranges(self, query_start, query_stop):
        left, right = (m.ranges(query_start, query_stop) for m in (self.left, self.right))
        if isinstance(left[0], np.ndarray) and isinstance(right[0], np.ndarray):
            return None
        return jnp.minimum(left[0], right[0]), jnp.maximum(left[1], right[1])


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

    >>> from jaxformer.masks import causal
    >>> as_mask([[True, False]]).dense(1, 2)[0, 0].astype(int).tolist(), as_mask(causal()) == causal()
    ([[1, 0]], True)
    """
    return mask if isinstance(mask, Mask) else dense(mask)
