"""The interface of a mask, its combinations, and masks from arrays."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxformer.reprs import MOST_CELLS, as_grid, as_html, brief

UNBOUNDED = sys.maxsize
"""The stop of a `Mask.key_range` that extends to the last key."""


class Mask:
    """A mask of pairs of queries and keys. Masks combine with ``&``, ``|`` and ``~``.

    A mask is a pytree, so ``jax.vmap`` gives each example of a batch its own part.

    To add a new kind, write a subclass that defines `tile`, and `key_range` if it can rule out keys. Register it as a
    pytree (``jax.tree_util.register_dataclass``) so that it passes through ``jit``, ``scan`` and ``grad``.

    >>> from jaxformer.masks import causal, window
    >>> (causal() & ~window(0)).dense(3, 3)[0, 0].astype(int).tolist()
    [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    """

    __array_ufunc__ = None
    """Lets ``array & mask`` call the mask's operator instead of a loop over the elements of a NumPy array."""

    finite: bool = False
    """True if all queries, keys and values are known to be finite, so that masked ones need not be replaced by 0.

    It is True for a combination if it is True for one of its masks.
    """

    def tile(self, query_index: jax.Array, key_index: jax.Array) -> jax.Array:
        """Returns the mask at these absolute positions.

        The types are ``int [t], int [s] -> Bool [b, n, t, s]`` with b in {1, B} and n in {1, N}. If the mask is the
        same for all queries, t may be 1.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define tile")

    def key_range(self, query_start: int, query_stop: int) -> tuple[int, int]:
        """Returns a static range of all keys that queries ``[query_start, query_stop)`` may attend to."""
        return 0, UNBOUNDED

    def live_ranges(self, query_start: np.ndarray, query_stop: np.ndarray) -> tuple[jax.Array, jax.Array] | None:
        """Returns, for blocks of queries, data-dependent ranges of all keys that they may attend to.

        The types are ``int [q], int [q] -> int32 [q or 1, b], int32 [q or 1, b]`` (start and stop) with b in {1, B}.
        The result is None if the data rule out no keys. It need not respect the limits of `key_range`.

        >>> from jaxformer.masks import padding
        >>> [x.tolist() for x in padding([[False, True, True, False]]).live_ranges(np.array([0]), np.array([4]))]
        [[[1]], [[3]]]
        """
        return None

    def ranges(self, query_start: np.ndarray, query_stop: np.ndarray) -> tuple[jax.Array | np.ndarray, ...]:
        """Returns the intersection of `key_range` and `live_ranges`, with the shapes of the latter.

        The result is a pair of NumPy arrays, ``int32 [q, 1]``, if the data rule out no keys.

        >>> from jaxformer.masks import lengths, window
        >>> [x.tolist() for x in (window(1) & lengths([6])).ranges(np.array([0, 4]), np.array([4, 8]))]
        [[[0], [3]], [[4], [6]]]
        """
        static = [self.key_range(int(start), int(stop)) for start, stop in zip(query_start, query_stop, strict=True)]
        first, last = np.clip(static, 0, np.iinfo(np.int32).max).astype(np.int32).T[..., None]
        live = self.live_ranges(query_start, query_stop)
        if live is None:
            return first, last
        return jnp.maximum(first, live[0]), jnp.minimum(last, live[1])

    def at_positions(self, query: jax.Array | np.ndarray, key: jax.Array | np.ndarray) -> Mask:
        """Returns the mask for queries and keys at these absolute positions, ``int [b, T]`` and ``int [b, S]``.

        The dimension b is 1 or B. A mask that reads no positions, such as `padding` or a combination of such masks, is
        returned itself: the same object.

        Raises:
          ValueError: a `tile` is not Boolean or not of rank 4.

        >>> from jaxformer.masks import window
        >>> window(1).at_positions(np.array([[3]]), np.arange(5)[None]).dense(1, 5)[0, 0].astype(int).tolist()
        [[0, 0, 1, 1, 0]]
        """
        query, key = signed(query), signed(key)
        if query.shape[0] == key.shape[0] == 1:
            return Dense(self._checked_tile(jnp.asarray(query[0]), jnp.asarray(key[0])))
        batch = max(query.shape[0], key.shape[0])
        tile = jax.vmap(self._checked_tile)(*(jnp.broadcast_to(x, (batch, x.shape[1])) for x in (query, key)))
        examples = jnp.arange(batch)  # if the mask has arrays, example i of the mask is used for example i
        return Dense(tile[:, 0] if tile.shape[1] == 1 else tile[examples, examples])

    def check(self, num_queries: int, num_keys: int) -> None:
        """Checks that the mask covers these lengths; a gather clamps indices, so `tile` cannot check them.

        Raises:
          ValueError: the mask covers other lengths; the message has the actual and expected lengths.
        """

    def dense(self, num_queries: int, num_keys: int) -> jax.Array:
        """Returns the full mask, ``Bool [b, n, T, S]``, after `check`.

        Raises:
          ValueError: see `check`; or a `tile` is not Boolean, whose ``~`` would allow all pairs, or not of rank 4.
        """
        self.check(num_queries, num_keys)
        tile = self._checked_tile(jnp.arange(num_queries), jnp.arange(num_keys))
        return jnp.broadcast_to(tile, (*tile.shape[:2], num_queries, num_keys))

    def _checked_tile(self, query_index: jax.Array, key_index: jax.Array) -> jax.Array:
        tile = self.tile(query_index, key_index)
        if tile.dtype != bool or tile.ndim != 4:
            raise ValueError(f"the tile of a mask must be Bool [b, n, t, s], got {tile.dtype} {list(tile.shape)}")
        return tile

    def additive(self, num_queries: int, num_keys: int, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
        """Returns the additive mask ``[b, n, T, S]``: 0 if a query may attend, minus infinity otherwise."""
        return jnp.where(self.dense(num_queries, num_keys), 0, -jnp.inf).astype(dtype)

    def _repr_html_(self) -> str:
        """Returns the mask of the first example and head as a grid, of lengths that it covers."""
        dims = {size for leaf in jax.tree.leaves(self) for size in jnp.shape(leaf)[-2:]}
        lengths = itertools.chain(((n, n) for n in (8, *dims, *range(1, 257))), itertools.product(dims, dims))
        covered = next((pair for pair in lengths if self._covers(*pair)), None)
        if covered is None:
            return as_html(self)
        tile = self._checked_tile(*(jnp.arange(min(length, MOST_CELLS)) for length in covered))
        rows, columns = ([str(i) for i in range(length)] for length in covered)
        grid = np.broadcast_to(tile[0, 0], [min(length, MOST_CELLS) for length in covered])
        caption = f"{self!r}: each row is a query, dark at the keys that it may attend to"
        return as_grid(grid, rows, columns, caption=caption + f"; the first of {len(tile)} examples" * (len(tile) > 1))

    def _covers(self, num_queries: int, num_keys: int) -> bool:
        try:
            self.check(num_queries, num_keys)
        except ValueError:
            return False
        return True

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

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value, and `a and b` would be b alone; combine masks with &, | and ~")


class IndexedMask(Mask):
    """A mask with an entry for each stored query or key, which is unchanged by their positions."""

    def at_positions(self, query, key):
        return self


@dataclasses.dataclass(frozen=True)
class Combination(Mask):
    """Two masks, combined."""

    left: Mask
    right: Mask

    @property
    def finite(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.left.finite or self.right.finite

    def at_positions(self, query, key):
        left, right = (mask.at_positions(query, key) for mask in (self.left, self.right))
        return self if left is self.left and right is self.right else type(self)(left, right)

    def check(self, num_queries, num_keys):
        self.left.check(num_queries, num_keys)
        self.right.check(num_queries, num_keys)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class And(Combination):
    """Allows the pairs that both masks allow."""

    __repr__ = brief

    def tile(self, query_index, key_index):
        return self.left.tile(query_index, key_index) & self.right.tile(query_index, key_index)

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
class Or(Combination):
    """Allows the pairs that either mask allows; the range is the hull of both."""

    __repr__ = brief

    def tile(self, query_index, key_index):
        return self.left.tile(query_index, key_index) | self.right.tile(query_index, key_index)

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
    """Allows the pairs that the mask forbids. It skips no blocks, because the complement of a range is not a range."""

    mask: Mask

    __repr__ = brief

    @property
    def finite(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mask.finite

    def tile(self, query_index, key_index):
        return ~self.mask.tile(query_index, key_index)

    def at_positions(self, query, key):
        mask = self.mask.at_positions(query, key)
        return self if mask is self.mask else Not(mask)

    def check(self, num_queries, num_keys):
        self.mask.check(num_queries, num_keys)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dense(IndexedMask):
    """Allows the pairs that are True in an array, ``Bool [b, n, T, S]``."""

    array: jax.Array
    finite: bool = dataclasses.field(default=False, metadata={"static": True})

    __repr__ = brief

    def tile(self, query_index, key_index):
        array = self.array[(None,) * (4 - self.array.ndim)]
        tile = take(take(array, query_index, 2), key_index, 3)
        return jnp.broadcast_to(tile, (*tile.shape[:2], query_index.shape[0], key_index.shape[0]))

    def check(self, num_queries, num_keys):
        got, expected = self.array.shape[-2:], (num_queries, num_keys)
        if any(g not in (1, e) for g, e in zip(got, expected, strict=True)):
            of_keys = got[1] == num_keys and self.array.size == math.prod(got)  # as an array [B, S] would be
            hint = "; masks.padding takes the real keys of each example, Bool [B, S]" if of_keys else ""
            raise ValueError(f"mask covers [T, S] = {list(got)}, but queries and keys have {list(expected)}{hint}")


def signed(positions: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Returns positions of an unsigned or narrow type as int32, because their differences would wrap around.

    >>> signed(np.array([3], np.uint8)).dtype, signed(np.array([3])).dtype
    (dtype('int32'), dtype('int64'))
    """
    kept = not jnp.issubdtype(positions.dtype, jnp.integer) or positions.dtype in (np.int32, np.int64)
    return positions if kept else positions.astype(np.int32)


def take(array: jax.Array, index: jax.Array | np.ndarray, axis: int) -> jax.Array:
    """Returns entries along an axis; a single entry, which stands for all, stays.

    >>> rows = jnp.array([[1, 2]])
    >>> take(rows, jnp.array([0, 0]), 0).tolist(), take(rows, jnp.array([1]), 1).tolist()
    ([[1, 2]], [[2]])
    """
    return array if array.shape[axis] == 1 else array[(slice(None),) * axis + (index,)]


def dense(array: ArrayLike, *, finite: bool = False) -> Mask:
    """Returns the mask of a Boolean array ``[T, S]``, ``[B, T, S]`` or ``[B, N, T, S]`` (1 broadcasts), True = attend.

    Args:
      finite: see `Mask.finite`.

    >>> dense([[True, False]]).dense(2, 2)[0, 0].astype(int).tolist()
    [[1, 0], [1, 0]]
    """
    array = jnp.asarray(array)
    if array.dtype != bool or array.ndim not in (2, 3, 4):
        raise ValueError(
            f"mask must be Boolean of rank 2, 3 or 4, got {array.dtype} {list(array.shape)}"
            + ("" if array.dtype == bool else "; use from_binary for numbers 0 and 1")
        )
    shape = {2: (1, 1), 3: (array.shape[0], 1), 4: array.shape[:2]}[array.ndim]
    return Dense(array.reshape(*shape, *array.shape[-2:]), finite)


def from_torch(array: ArrayLike, *, num_heads: int = 1) -> Mask:
    """Returns the mask of an `attn_mask` of ``torch.nn.MultiheadAttention``, where True means *masked out*.

    For a `key_padding_mask`, use ``padding(~array)``.

    Args:
      array: ``Bool [T, S]`` or, as PyTorch stores one for each head, ``Bool [B * num_heads, T, S]``.
      num_heads: the number of heads in an array of rank 3; with 1, all heads share the mask.

    Raises:
      ValueError: the array is not Boolean, or its first dimension is not a multiple of `num_heads`.

    >>> from_torch([[False, True]]).dense(1, 2)[0, 0].astype(int).tolist()
    [[1, 0]]
    >>> from_torch([[[False]], [[True]]], num_heads=2).dense(1, 1)[0, :, 0, 0].astype(int).tolist()
    [1, 0]
    """
    array = jnp.asarray(array)
    if array.dtype != bool:
        raise ValueError(f"mask must be Boolean, got {array.dtype}; use dense(array == 0) for an additive mask")
    if array.ndim == 3:
        if array.shape[0] % num_heads:
            raise ValueError(f"a mask of {num_heads} heads must have [B * {num_heads}, T, S], got {list(array.shape)}")
        array = array.reshape(-1, num_heads, *array.shape[1:])
    return dense(~array)


def from_binary(array: ArrayLike) -> Mask:
    """Returns the mask of an array of 1 (attend) and 0 (masked) of any dtype, with the ranks that `dense` accepts.

    Values of traced arrays are unknown, so inside `jax.jit` they are not checked, and all values but 1 are masked.

    Raises:
      ValueError: a value is neither 0 nor 1, as in an additive mask of 0 and minus infinity.

    >>> from_binary([[1.0, 0.0], [1.0, 1.0]]).dense(2, 2)[0, 0].astype(int).tolist()
    [[1, 0], [1, 1]]
    """
    if not isinstance(array, jax.core.Tracer):
        array = np.asarray(array)
        if (wrong := array[~np.isin(array, (0, 1))]).size:
            raise ValueError(
                f"a binary mask must hold 1 (attend) and 0 (masked) only, got {wrong[0]}; "
                "for an additive mask of 0 (attend) and minus infinity, use dense(array == 0)"
            )
    array = jnp.asarray(array)
    return dense(array == jnp.ones((), array.dtype))


def as_mask(mask: Mask | ArrayLike) -> Mask:
    """Returns a mask unchanged, or the mask of a Boolean array (see `dense`).

    Raises:
      TypeError: the argument is None, a string, a function such as `causal` that was not called, or a `Mask` whose
        class is not registered as a pytree.

    >>> from jaxformer.masks import causal
    >>> as_mask([[True, False]]).dense(1, 2)[0, 0].astype(int).tolist(), as_mask(causal()) == causal()
    ([[1, 0]], True)
    """
    if isinstance(mask, Mask):
        if kinds := [type(x).__name__ for x in jax.tree.leaves(mask) if isinstance(x, Mask)]:
            raise TypeError(f"a mask must be a pytree: decorate {kinds[0]} with jax.tree_util.register_dataclass")
        return mask
    if mask is None or isinstance(mask, str) or callable(mask):
        got = getattr(mask, "__name__", mask)
        raise TypeError(f"a mask must be a Mask, such as masks.causal(), or a Boolean array, got {got}")
    return dense(mask)
