"""The relative position bias of T5: distances fall into buckets, each with a learned number a head."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
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

    >>> import jax.numpy as jnp
    >>> bias = t5_bias(jnp.arange(8.)[:, None], max_distance=16)
    >>> bias.tile(None, jnp.array([8]), jnp.arange(0, 17, 2))[0, 0].tolist()
    [[3.0, 3.0, 2.0, 2.0, 0.0, 6.0, 6.0, 7.0, 7.0]]
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
    return start + jnp.asarray(_buckets(num_buckets, max_distance), ahead.dtype)[jnp.minimum(distance, max_distance)]


@functools.cache
def _buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of every distance from 0 to `max_distance`.

    ``exact + floor(log(d / exact) / log(max_distance / exact) * wide)``, in whole numbers: a logarithm in float32 is
    now and then one off where the quotient is whole.
    """
    exact = num_buckets // 2
    wide, far, found = num_buckets - exact, 0, list(range(exact))
    for distance in range(exact, max_distance + 1):
        while far + 1 < wide and distance**wide >= exact ** (wide - far - 1) * max_distance ** (far + 1):
            far += 1
        found.append(exact + far)
    return np.array(found)
