"""The key-value cache of incremental decoding, passed and returned like any other array.

The hypotheses of a beam search for one row of the batch may share a cache. It then has K lanes at each position, one
for each hypothesis, and a map of lanes (TensorRT-LLM calls it cache indirection) records which lane holds the token of
each hypothesis. Reordering hypotheses, as beam search does after every token, permutes that map, not keys and values.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxformer.reprs import brief

MOST_LANES = 8
"""The largest number of hypotheses per row that share a cache.

Each hypothesis computes the logits of all lanes and masks the lanes of the others. For a small beam that costs less
than moving keys and values, but the cost grows with the square of the number of hypotheses.
"""


class KeyValueCache(NamedTuple):
    """Keys and values of the positions decoded so far, in S slots of each row.

    If K hypotheses share a row, position t in lane l is slot ``t K + l``; if each hypothesis has its own row, position
    t is slot t. Unwritten slots are 0.

    >>> import jax.numpy as jnp
    >>> from jaxformer.functional.cache import empty_cache, write
    >>> cache = empty_cache(1, 3, num_kv_heads=1, head_dim=1, dtype=jnp.float32)
    >>> cache = write(cache, jnp.full((1, 2, 1, 1), 5.0), jnp.full((1, 2, 1, 1), 7.0), jnp.array([[2, 0]]))
    >>> cache.key[0, 0, :, 0].tolist(), cache.value[0, 0, :, 0].tolist()
    ([5.0, 0.0, 5.0], [7.0, 0.0, 7.0])
    """

    key: jax.Array  # [B, N, S, H]
    value: jax.Array  # [B, N, S, J]

    __repr__ = brief


def empty_cache(rows: int, slots: int, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> KeyValueCache:
    """Returns a cache of zeros."""
    zeros = jnp.zeros((rows, num_kv_heads, slots, head_dim), dtype)
    return KeyValueCache(zeros, zeros)


def write(
    cache: KeyValueCache,
    key: Float[Array, "B Q N H"],
    value: Float[Array, "B Q N J"],
    slots: Int[Array, "B Q"],
) -> KeyValueCache:
    """Returns the cache with the keys and values at Q slots of each row replaced; slots past the end are ignored."""

    def set_row(cached: Array, new: Array, slots: Array) -> Array:
        return cached.at[:, slots].set(new.swapaxes(0, 1).astype(cached.dtype), mode="drop")

    # One scatter with batch dimensions: it works in place, and on each device's shard of B.
    set_rows = jax.vmap(set_row)
    return KeyValueCache(set_rows(cache.key, key, slots), set_rows(cache.value, value, slots))


def first_lanes(batch: int, beam_size: int, length: int) -> Int[Array, "B K L"] | None:
    """Returns the map of lanes of an empty cache, or None if each hypothesis has its own cache."""
    if not 1 < beam_size <= MOST_LANES:
        return None
    return jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32)[None, :, None], (batch, beam_size, length))


def take_lanes(lanes: Int[Array, "B K L"], position: Int[Array, "B K"], count: int) -> Int[Array, "B K L"]:
    """Returns the map of lanes after each hypothesis takes a lane at each of its next `count` positions.

    It takes a lane that no hypothesis needs: a lane that holds the past of a longer hypothesis is not overwritten.

    Args:
      lanes: the lane of each hypothesis's token at each position; only positions before `position` count.
      position: the next position of each hypothesis.

    >>> import jax.numpy as jnp
    >>> lanes = jnp.array([[[0, 0], [0, 1]]])  # the second has tokens in lanes 0 and 1
    >>> take_lanes(lanes, jnp.array([[0, 2]]), 1).tolist()
    [[[1, 0], [0, 1]]]
    """
    beam_size, length = lanes.shape[1:]
    lane = jnp.arange(beam_size)
    positions = position[..., None] + jnp.arange(count)[None, None]  # [B, K, T]
    index = positions.reshape(positions.shape[0], 1, -1)
    held = jnp.take_along_axis(lanes, index, 2, mode="clip").reshape(-1, beam_size, beam_size, count)  # [B, J, K, T]
    of_each = position[:, :, None, None]
    needs = of_each > positions[:, None]  # [B, J, K, T]: hypothesis J has a token there
    free = ~(needs[..., None] & (held[..., None] == lane[None, None, None, None])).any(1)  # [B, K, T, lane]
    writes = ~needs & (positions[:, None] < of_each + count)
    earlier = np.tri(beam_size, k=-1, dtype=bool).T[None, :, :, None]  # J < K
    rank = (writes & earlier).sum(1)[..., None]  # [B, K, T, 1]: the number of hypotheses that choose first
    chosen = (free & (free.cumsum(-1) == rank + 1)).argmax(-1).astype(lanes.dtype)
    here = jnp.arange(length)[None, None, None] == positions[..., None]  # [B, K, T, L]
    return jnp.where(here.any(2), jnp.where(here, chosen[..., None], 0).sum(2, dtype=lanes.dtype), lanes)


def slots_of(lanes: Int[Array, "B K L"], positions: Int[Array, "B K T"]) -> Int[Array, "B Q"]:
    """Returns the slots in the cache of these positions of each hypothesis (Q = K T)."""
    lane = jnp.take_along_axis(lanes, positions, 2, mode="clip")
    return (positions * lanes.shape[1] + lane).reshape(lanes.shape[0], -1)


def seen_positions(positions: Int[Array, "... T"], length: int, window: int | None = None) -> Bool[Array, "... T L"]:
    """Returns, for each position, True at those of the first `length` positions that it sees.

    Args:
      window: the number of positions, including its own, that each position sees; None for its whole past.

    >>> import jax.numpy as jnp
    >>> seen_positions(jnp.array([1, 3]), 5, window=2).astype(int).tolist()
    [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]]
    """
    distance = positions[..., None] - jnp.arange(length).reshape((1,) * positions.ndim + (-1,))
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def seen_slots(
    lanes: Int[Array, "B K L"], positions: Int[Array, "B K T"], window: int | None = None
) -> Bool[Array, "B Q S"]:
    """Returns True for the slots that each position of a hypothesis sees: see `seen_positions` (S = L K)."""
    batch, beam_size, length = lanes.shape
    is_own = lanes[..., None] == jnp.arange(beam_size)[None, None, None]  # [B, K, L, lane]
    past = seen_positions(positions, length, window)  # [B, K, T, L]
    return (is_own[:, :, None] & past[..., None]).reshape(batch, -1, length * beam_size)
