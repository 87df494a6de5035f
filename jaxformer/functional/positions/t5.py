"""The relative position bias of T5: distances fall into buckets, and each bucket has a learned number for each head."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.functional.bias import Bias
from jaxformer.reprs import brief


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class T5Bias(Bias):
    """The bias ``table[bucket(s - t), n]``."""

    table: jax.Array  # [buckets, N]
    max_distance: int = dataclasses.field(metadata={"static": True})
    bidirectional: bool = dataclasses.field(metadata={"static": True})

    __repr__ = brief

    def tile(self, query, query_index, key_index):
        ahead = key_index[None] - query_index[:, None]
        bucket = t5_bucket(
            ahead,
            num_buckets=self.table.shape[0],
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return jnp.moveaxis(self.table.astype(jnp.float32)[bucket], -1, 0)[None]


def t5_bias(table: Float[Array, "buckets N"], *, max_distance: int = 128, bidirectional: bool = True) -> T5Bias:
    """Returns the bias of a learned table (Raffel et al. 2020, section 2.1).

    All distances of at least `max_distance` share a bucket. The paper's layers leave the logits unscaled, so pass
    ``scale=1.0`` to `attention` for T5.

    Args:
      bidirectional: half of the buckets are for keys ahead; otherwise keys ahead share the bucket of distance 0.

    Raises:
      ValueError: there are too few buckets, or the exact buckets already reach `max_distance`.

    >>> import jax.numpy as jnp
    >>> bias = t5_bias(jnp.arange(8.)[:, None], max_distance=16)
    >>> bias.tile(None, jnp.array([8]), jnp.arange(0, 17, 2))[0, 0].tolist()
    [[3.0, 3.0, 2.0, 2.0, 0.0, 6.0, 6.0, 7.0, 7.0]]
    """
    directions = 1 + bidirectional
    half = table.shape[0] // directions
    if half < 2 or max_distance <= half // 2:
        raise ValueError(
            f"t5_bias must have at least {2 * directions} buckets and a max_distance above {half // 2}, got "
            f"{table.shape[0]} buckets and max_distance {max_distance}"
        )
    return T5Bias(table, max_distance, bidirectional)


def t5_bucket(
    ahead: Int[Array, "*dims"], *, num_buckets: int, max_distance: int, bidirectional: bool
) -> Int[Array, "*dims"]:
    """Returns the bucket of a key `ahead` positions ahead of its query: half are exact, half logarithmic.

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
    """Returns the bucket of every distance from 0 to `max_distance`.

    The bucket is ``exact + floor(log(d / exact) / log(max_distance / exact) * logarithmic)``, computed with integers,
    because float32 logarithms are sometimes off by one bucket if the quotient is an integer.
    """
    exact = num_buckets // 2
    logarithmic, step, buckets = num_buckets - exact, 0, list(range(exact))
    for distance in range(exact, max_distance + 1):
        while step + 1 < logarithmic and (
            distance**logarithmic >= exact ** (logarithmic - step - 1) * max_distance ** (step + 1)
        ):
            step += 1
        buckets.append(exact + step)
    return np.array(buckets)
