"""The key-value cache of incremental decoding, an argument and a result like any other array."""

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
    >>> cache = empty_cache(batch=1, beam_size=2, length=3, heads=1, dim=1, dtype=jnp.float32)
    >>> cache = write(cache, jnp.full((1, 2, 1, 1), 5.0), jnp.full((1, 2, 1, 1), 7.0), jnp.array([[1, 0]]))
    >>> cache.key[0, :, :, 0, 0].tolist(), cache.value[0, :, :, 0, 0].tolist()
    ([[0.0, 5.0, 0.0], [5.0, 0.0, 0.0]], [[0.0, 7.0, 0.0], [7.0, 0.0, 0.0]])
    """

    key: jax.Array  # [B, K, T, N, H]
    value: jax.Array  # [B, K, T, N, J]


def empty_cache(batch: int, beam_size: int, length: int, heads: int, dim: int, dtype: DTypeLike) -> KeyValueCache:
    """Returns a cache of zeros with room for `length` positions."""
    zeros = jnp.zeros((batch, beam_size, length, heads, dim), dtype)
    return KeyValueCache(zeros, zeros)


def write(
    cache: KeyValueCache,
    key: Float[Array, "B K *T N H"],
    value: Float[Array, "B K *T N J"],
    position: Int[Array, "B K *T"],
) -> KeyValueCache:
    """Returns the cache with the keys and values at one position of each hypothesis, or at T of them, replaced.

    A single `position` must be below the length of the cache: JAX would clamp a later one to the last position. Of
    several, those beyond the length are dropped.
    """

    def set_row(cached: Array, new: Array, position: Array) -> Array:
        new = new.astype(cached.dtype)
        if position.ndim:
            return cached.at[position].set(new, mode="drop")
        return jax.lax.dynamic_update_index_in_dim(cached, new, position, 0)

    # One scatter with batch dimensions, which stays in place and stays on its device where B is sharded.
    set_rows = jax.vmap(jax.vmap(set_row))
    return KeyValueCache(set_rows(cache.key, key, position), set_rows(cache.value, value, position))
