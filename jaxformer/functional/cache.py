"""The key-value cache of incremental decoding: a value that goes in and comes out, like any other array."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


class KeyValueCache(NamedTuple):
    """Keys and values of the positions decoded so far, for each of K hypotheses of B sentences.

    >>> import jax.numpy as jnp
    >>> from jaxformer.functional.cache import empty_cache, write
    >>> cache = empty_cache(batch=1, beam_size=1, length=3, heads=1, dim=1, dtype=jnp.float32)
    >>> cache = write(cache, jnp.full((1, 1, 1, 1), 5.0), jnp.full((1, 1, 1, 1), 7.0), jnp.int32(1))
    >>> cache.key.ravel().tolist(), cache.value.ravel().tolist()
    ([0.0, 5.0, 0.0], [0.0, 7.0, 0.0])
    """

    key: jax.Array  # [B, K, T, N, H]
    value: jax.Array  # [B, K, T, N, J]


def empty_cache(batch: int, beam_size: int, length: int, heads: int, dim: int, dtype: DTypeLike) -> KeyValueCache:
    """A cache of zeros for `length` positions."""
    zeros = jnp.zeros((batch, beam_size, length, heads, dim), dtype)
    return KeyValueCache(zeros, zeros)


def write(
    cache: KeyValueCache,
    key: Float[Array, "B K N H"],
    value: Float[Array, "B K N J"],
    position: Int[Array, ""],
) -> KeyValueCache:
    """The cache with one position set.  All hypotheses stand at the same position, so this is one slice update.

    `position` must be below the length of the cache: JAX would take the last position for one beyond.
    """
    at = lambda old, new: jax.lax.dynamic_update_index_in_dim(old, new.astype(old.dtype), position, 2)
    return KeyValueCache(at(cache.key, key), at(cache.value, value))
