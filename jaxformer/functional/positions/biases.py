"""Positions as biases of the logits: ALiBi, the buckets of T5, the learned keys of Shaw et al., and Transformer-XL."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.functional.bias import Bias, DenseBias
from jaxformer.functional.feed_forward import add_shared
from jaxformer.functional.positions.vectors import sinusoidal
from jaxformer.reprs import brief


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Alibi(Bias):
    """The bias ``-slope_n |t - s|``: each head has its own rate of decay with distance; nothing is learned."""

    slopes: tuple[float, ...] = dataclasses.field(metadata={"static": True})

    def tile(self, query, query_index, key_index):
        distance = jnp.abs(query_index[:, None] - key_index[None]).astype(jnp.float32)
        return -jnp.asarray(self.slopes, jnp.float32).reshape(1, -1, 1, 1) * distance[None, None]


def alibi(num_heads: int) -> Alibi:
    """Returns the bias for `num_heads` heads, with the paper's slopes :math:`2^{-8/N}, 2^{-16/N}, \\dots, 2^{-8}`.

    If N is not a power of two, the slopes are those of the next lower power, then every other one of the next higher
    power, as in the authors' code.

    Raises:
      ValueError: `num_heads` is below 1.

    >>> alibi(4).slopes
    (0.25, 0.0625, 0.015625, 0.00390625)
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * i / lower) for i in range(1, lower + 1)]
    slopes += [2 ** (-4 * i / lower) for i in range(1, 2 * (num_heads - lower), 2)]
    return Alibi(tuple(slopes))


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RelativeKeys(Bias):
    """The bias ``q_t . a[clip(s - t)]``."""

    table: jax.Array  # [2 k + 1, H] or [N, 2 k + 1, H]

    __repr__ = brief

    def tile(self, query, query_index, key_index):
        reach = self.table.shape[-2] // 2
        table = jnp.broadcast_to(self.table.astype(query.dtype), (query.shape[1], *self.table.shape[-2:]))
        scores = jnp.einsum("bnth,nrh->bntr", query, table)
        column = jnp.clip(key_index[None] - query_index[:, None], -reach, reach) + reach  # [t, s]
        return jnp.take_along_axis(scores, column[None, None], axis=3)

    def take_heads(self, first, count):
        shared = self.table.ndim == 2
        return self if shared else RelativeKeys(jax.lax.dynamic_slice_in_dim(self.table, first, count, 0))


def relative_keys(table: Float[Array, "R H"] | Float[Array, "N R H"]) -> RelativeKeys:
    r"""Returns the bias that adds a learned vector for each distance to the keys (Shaw et al. 2018, eq. 4).

    .. math:: e_{ts} = q_t \cdot (k_s + a_{clip(s-t,-k,k)}) / \sqrt{H}

    Args:
      table: R = 2 k + 1 vectors, from k positions behind to k ahead, shared by all heads or one set for each; longer
        distances use the first or the last vector.

    Raises:
      ValueError: R is even.

    >>> import jax.numpy as jnp
    >>> bias = relative_keys(jnp.array([[-1.], [0.], [1.]]))
    >>> bias.tile(jnp.ones((1, 1, 2, 1)), jnp.arange(2), jnp.arange(4))[0, 0].tolist()
    [[0.0, 1.0, 1.0, 1.0], [-1.0, 0.0, 1.0, 1.0]]
    """
    if table.shape[-2] % 2 == 0:
        raise ValueError(f"the number of distances must be odd (2 k + 1), got {table.shape[-2]}")
    return RelativeKeys(table)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransformerXL(Bias):
    """The bias ``(q_t + shift) . W r[t - s]``."""

    kernel: jax.Array  # [D, N, H]
    shift: jax.Array  # [N, H]
    scale: float = dataclasses.field(metadata={"static": True})

    __repr__ = brief

    def tile(self, query, query_index, key_index):
        # There is one distance for each diagonal of the tile.
        count = query_index.shape[0] + key_index.shape[0] - 1
        smallest = query_index[0] - key_index[-1]
        distances = sinusoidal(smallest + jnp.arange(count), dim=self.kernel.shape[0])
        keys = jnp.einsum("rd,dnh->rnh", distances, self.kernel.astype(jnp.float32))
        shifted = query + self.shift.astype(query.dtype)[None, :, None] * self.scale
        scores = jnp.einsum("bnth,rnh->bntr", shifted, keys.astype(query.dtype))
        column = query_index[:, None] - key_index[None] - smallest
        return jnp.take_along_axis(scores, column[None, None], axis=3)

    def at_positions(self, query, query_positions, key_positions):
        """Computes the same as `tile`, with r[t - s] as r[s] rotated by t: one projection per query, not per pair."""
        shifted = query + self.shift.astype(query.dtype)[None, :, None] * self.scale
        projected = jnp.einsum("bnth,dnh->bntd", shifted, self.kernel.astype(query.dtype))
        by_sine, by_cosine = projected[..., ::2], projected[..., 1::2]
        waves = (sinusoidal(x, dim=self.kernel.shape[0]) for x in (query_positions, key_positions))
        (query_sine, query_cosine), (key_sine, key_cosine) = ((x[:, None, :, ::2], x[:, None, :, 1::2]) for x in waves)
        cosine = by_sine * query_sine + by_cosine * query_cosine
        sine = by_cosine * query_sine - by_sine * query_cosine
        scores = jnp.einsum("bntd,bnsd->bnts", cosine, _all_heads(key_cosine, cosine))
        return DenseBias(scores + jnp.einsum("bntd,bnsd->bnts", sine, _all_heads(key_sine, sine)))

    def take_heads(self, first, count):
        kernel = jax.lax.dynamic_slice_in_dim(self.kernel, first, count, 1)
        return TransformerXL(kernel, jax.lax.dynamic_slice_in_dim(self.shift, first, count, 0), self.scale)


def _all_heads(keys: Array, queries: Array) -> Array:
    """Returns keys ``[b, 1, S, D]`` as ``[B, N, S, D]``."""
    return jnp.broadcast_to(keys, (*queries.shape[:2], *keys.shape[2:]))


def transformer_xl(
    query: Float[Array, "B T N H"],
    kernel: Float[Array, "D N H"],
    content: Float[Array, "N H"],
    position: Float[Array, "N H"],
    *,
    scale: float | None = None,
) -> tuple[Float[Array, "B T N H"], TransformerXL]:
    r"""Returns the query and the bias of Transformer-XL for `attention` (Dai et al. 2019, section 3.3).

    .. math:: e_{ts} = \left((q_t + u) \cdot k_s + (q_t + v) \cdot W r_{t-s}\right) / \sqrt{H}

    Here :math:`r` is sinusoidal, `content` is u and `position` is v. The scale must be the same as in `attention`.

    >>> import jax.numpy as jnp
    >>> from jaxformer import functional as F
    >>> x, zero = jnp.ones((1, 3, 2, 4)), jnp.zeros((2, 4))
    >>> query, bias = transformer_xl(x, jnp.ones((6, 2, 4)), content=zero, position=zero)
    >>> F.attention(query, x, x, bias=bias).shape
    (1, 3, 2, 4)
    """
    return add_shared(query, content), TransformerXL(
        kernel, position - content, query.shape[-1] ** -0.5 if scale is None else scale
    )
