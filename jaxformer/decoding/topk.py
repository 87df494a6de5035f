"""Argmax and top-k in passes that XLA vectorizes on a CPU; there, its own `argmax` and `top_k` are scalar loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

BLOCK = 64
"""The length of the blocks whose maxima `top_scores` compares first."""


def first_highest(scores: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
    """Returns the index of the highest score, the first in a tie, like ``jnp.argmax``.

    >>> first_highest(jnp.array([[1.0, 3.0, 3.0]])).tolist()
    [1]
    """
    lower = scores < scores.max(-1, keepdims=True)  # False for NaN
    index = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    return jnp.where(lower, scores.shape[-1], index).min(-1)


def top_scores(
    scores: Float[Array, "*batch V"], count: int
) -> tuple[Float[Array, "*batch count"], Int[Array, "*batch count"]]:
    """Returns the `count` highest scores and their indices, ties in order of index, like ``jax.lax.top_k``.

    The highest scores are in the `count` blocks with the highest maxima or after the last whole block: only these are
    sorted.

    >>> [x.tolist() for x in top_scores(jnp.array([[1.0, 3.0, 2.0, 3.0]]), 2)]
    [[[3.0, 3.0]], [[1, 3]]]
    """
    batch, num_blocks = scores.shape[:-1], scores.shape[-1] // BLOCK
    if 2 * count >= num_blocks:
        return jax.lax.top_k(scores, count)
    whole = num_blocks * BLOCK
    blocks = scores[..., :whole].reshape(*batch, num_blocks, BLOCK)
    chosen = jnp.sort(jax.lax.top_k(blocks.max(-1), count)[1], -1)  # in order of index, so that ties are
    candidates = jnp.take_along_axis(blocks, chosen[..., None], -2).reshape(*batch, count * BLOCK)
    # The rest is not padded to a block: that would keep XLA from vectorizing the computation of the scores.
    best, index = jax.lax.top_k(jnp.concatenate([candidates, scores[..., whole:]], -1), count)
    block = jnp.take_along_axis(chosen, jnp.minimum(index // BLOCK, count - 1), -1)
    return best, jnp.where(index < count * BLOCK, block * BLOCK + index % BLOCK, whole + index - count * BLOCK)
