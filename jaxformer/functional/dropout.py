"""Dropout whose bits are a pure function of a key and an index.

The bits are one integer hash of the element's absolute index, with the key folded in. They are the same under every
mesh, ``vmap`` and attention implementation; a tiled kernel can recompute any tile in its backward pass; and the hash
fuses into the surrounding arithmetic, while ``jax.random.bernoulli`` costs a separate pass.
"""

from __future__ import annotations

import functools
import math
import zlib
from typing import NamedTuple, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from jaxformer.functional.feed_forward import scaled
from jaxformer.reprs import brief


class Dropout(NamedTuple):
    """The dropout of attention weights: the probability of dropping a weight, and a key.

    >>> import jax, jax.numpy as jnp
    >>> from jaxformer import functional as F
    >>> x, half = jnp.ones((1, 4, 2, 8)), Dropout(0.5, jax.random.key(0))
    >>> one, other = (F.attention(x, x, x, dropout=half, implementation=i) for i in ("reference", "blockwise"))
    >>> bool(jnp.allclose(one, other)), bool(jnp.allclose(one, x))        # the same weights, and not all of them
    (True, False)
    """

    rate: float
    key: jax.Array

    __repr__ = brief


@overload
def fold_in_name(key: jax.Array, name: str) -> jax.Array: ...
@overload
def fold_in_name(key: None, name: str) -> None: ...
def fold_in_name(key: jax.Array | None, name: str) -> jax.Array | None:
    """Returns `key` with a stable hash of `name` folded in, one key for each use; None if `key` is None."""
    return None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))


def mix32(bits: UInt32[Array, "*dims"]) -> UInt32[Array, "*dims"]:
    """Returns a hash of each 32-bit word: a one-to-one multiply-xorshift mixer that maps 0 to 0.

    The constants are from Chris Wellons's search for low-bias 32-bit hashes ("lowbias32").

    >>> mix32(jnp.arange(3, dtype=jnp.uint32)).tolist()
    [0, 1753845952, 3507691905]
    """
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


class WideIndex(NamedTuple):
    """The index of an element in an array of more than 2**32 elements, as two 32-bit words."""

    low: UInt32[Array, ...]
    high: UInt32[Array, ...]


@functools.partial(jax.jit, inline=True)
def hashed_bits(key: jax.Array, index: UInt32[Array, ...] | WideIndex) -> UInt32[Array, ...]:
    """Returns 32 random bits for each index: one round of `mix32` for each word of the key.

    Equal indices have equal bits in every array. The high word of an index changes the last word of the key.
    """
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    words = jax.random.key_data(key) if is_typed else key
    if words.ndim != 1:
        raise ValueError(f"key must be one key, got {key.dtype} {list(key.shape)}; use jax.vmap for several")
    # The mixer maps 0 to 0; the constant keeps index 0 away from it under the all-zero key of jax.random.key(0).
    low, high = index if isinstance(index, WideIndex) else (index, None)
    bits = low * jnp.uint32(0x9E3779B1) + jnp.uint32(0x85EBCA6B)
    *others, last = words.reshape(-1)
    for word in others:
        bits = mix32(bits ^ word)
    return mix32(bits ^ last if high is None else bits ^ last ^ high * jnp.uint32(0xC2B2AE3D))


def keep(key: jax.Array, rate: float, index: UInt32[Array, ...] | WideIndex) -> Bool[Array, ...]:
    """Returns True, with probability ``1 - rate``, at each index."""
    return hashed_bits(key, index) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def flat_index(dims: tuple[int, ...], indices: tuple[Array, ...]) -> UInt32[Array, ...] | WideIndex:
    """Returns the row-major index of an element of an array of shape `dims`; `indices` broadcast."""
    if math.prod(dims) > 2**32:
        return _wide_index(dims, indices)
    flat = jnp.uint32(0)
    for size, index in zip(dims, indices, strict=True):
        flat = flat * jnp.uint32(size % 2**32) + index.astype(jnp.uint32)
    return flat


def _wide_index(dims: tuple[int, ...], indices: tuple[Array, ...]) -> WideIndex:
    low = high = jnp.uint32(0)
    for size, index in zip(dims, indices, strict=True):
        size %= 2**32
        # The product of two words, in halves.
        size_low, size_high = jnp.uint32(size & 0xFFFF), jnp.uint32(size >> 16)
        low_low, low_high = low & 0xFFFF, low >> 16
        middle = low_high * size_low + (low_low * size_low >> 16)
        carry = low_high * size_high + (middle >> 16) + (low_low * size_high + (middle & 0xFFFF) >> 16)
        low = low * jnp.uint32(size) + index.astype(jnp.uint32)
        high = high * jnp.uint32(size) + carry + (low < index.astype(jnp.uint32)).astype(jnp.uint32)
    return WideIndex(low, high)


def every_index(dims: tuple[int, ...]) -> UInt32[Array, ...] | WideIndex:
    """Returns the `flat_index` of every element of an array of shape `dims`."""
    return flat_index(dims, tuple(jax.lax.broadcasted_iota(jnp.uint32, dims, dim) for dim in range(len(dims))))


def dropout(x: Float[Array, "*dims"], *, rate: float, key: jax.Array | None) -> Float[Array, "*dims"]:
    """Sets each element to 0 with probability `rate` and divides the others by ``1 - rate``; identity without a key.

    Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".

    Raises:
      ValueError: `rate` is not in [0, 1), or `key` holds several keys.

    >>> import jax, jax.numpy as jnp
    >>> sorted(set(dropout(jnp.ones(100), rate=0.5, key=jax.random.key(0)).tolist()))
    [0.0, 2.0]
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout rate must be in [0, 1), got {rate}")
    if key is None or rate == 0:
        return x
    return jnp.where(keep(key, rate, every_index(x.shape)), scaled(x, 1 / (1 - rate)), jnp.zeros((), x.dtype))
