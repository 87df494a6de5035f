"""Relative positions in the logits: the learned keys of Shaw et al. and the projected sinusoids of Transformer-XL."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.functional.bias import Bias, DenseBias
from jaxformer.functional.positions.sinusoidal import sinusoidal
from jaxformer.functional.sums import add_shared
from jaxformer.reprs import brief


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
