"""The relative position bias of T5: distances fall into buckets, each with a learned number a head."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.functional.bias import Bias


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class T5Bias(Bias):
    """``table[bucket(s - t), n]``."""

    table: jax.Array  # [buckets, N]
    max_distance: int = dataclasses.field(metadata={"static": True})
    bidirectional: bool = dataclasses.field(metadata={"static": True})

    def tile(self, query, query_index, key_index):
        del query
        ahead = key_index[None] - query_index[:, None]
        bucket = t5_bucket(
            ahead,
            num_buckets=self.table.shape[0],
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return jnp.moveaxis(self.table[bucket].astype(jnp.float32), -1, 0)[None]


def t5_bias(table: Float[Array, "buckets N"], *, max_distance: int = 128, bidirectional: bool = True) -> T5Bias:
    """The bias of a learned table (Raffel et al. 2020, section 2.1); all distances from `max_distance` on share one.

    Unlike the paper's layers, which leave the logits unscaled, `attention` scales them; pass ``scale=1.0`` for T5.

    Args:
      bidirectional: half of the buckets for keys ahead; else keys ahead share the bucket of distance 0.

    Raises:
      ValueError: too few buckets, or a distance that the exact buckets already reach.
    """
    half = table.shape[0] // 2 if bidirectional else table.shape[0]
    if half < 2 or max_distance <= half // 2:
        raise ValueError(f"t5_bias needs more buckets or a longer distance: {table.shape[0]} buckets, {max_distance}")
    return T5Bias(table, max_distance, bidirectional)


def t5_bucket(
    ahead: Int[Array, "*dims"], *, num_buckets: int, max_distance: int, bidirectional: bool
) -> Int[Array, "*dims"]:
    """The bucket of a key `ahead` places ahead of its query: exact for half of them, then on a logarithmic scale.

    >>> import jax.numpy as jnp
    >>> t5_bucket(jnp.array([0, -1, -7, -8, -200, 1]), num_buckets=32, max_distance=128, bidirectional=True).tolist()
    [0, 1, 7, 8, 15, 17]
    """
    start = 0
    if bidirectional:
        num_buckets //= 2
        start = jnp.where(ahead > 0, num_buckets, 0)
        distance = jnp.abs(ahead)
    else:
        distance = jnp.maximum(-ahead, 0)
    exact = num_buckets // 2
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (num_buckets - exact)).astype(ahead.dtype)
    return start + jnp.where(distance < exact, distance, jnp.minimum(far, num_buckets - 1))
