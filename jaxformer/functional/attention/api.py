"""The attention call: checks the request, then chooses who computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.functional.attention import reference
from jaxformer.functional.attention.base import Request, make_request, masked_softmax
from jaxformer.functional.dropout import Dropout
from jaxformer.masks import Mask

_implementations: dict[str, Callable[[Request], Array]] = {
    "reference": lambda request: reference.attention(request)[0],
}


def attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K J"],
    *,
    mask: Mask | Bool[Array, ...] | None = None,
    bias: Float[Array, "b n t s"] | None = None,
    scale: float | None = None,
    dropout: Dropout | None = None,
    implementation: str | None = None,
) -> Float[Array, "B T N J"]:
    r"""Multi-head scaled dot-product attention, :math:`\mathrm{softmax}(QK^\top/\sqrt H + \mathrm{bias})V` per head.

    `attention_head` is the definition; this call lifts it over heads and batch.  With fewer key heads than query
    heads (N a multiple of K), consecutive query heads share one: grouped-query attention (Ainslie et al. 2023),
    multi-query at K = 1 (Shazeer 2019).

    Args:
      mask: who may attend to whom, True = attend: a `Mask`, or a Boolean array for `masks.dense`.
      bias: added to the scaled logits; each dimension 1 or that of [B, N, T, S].
      scale: factor of the logits, ``H ** -0.5`` by default.
      dropout: rate and key for dropping attention weights.
      implementation: the name of an implementation, or None to choose.

    Raises:
      ValueError: shapes that do not fit, with the got and the expected value; an unknown implementation.
    """
    request = make_request(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)
    name = "reference" if implementation is None else implementation
    if name not in _implementations:
        raise ValueError(f"unknown attention implementation {name!r}; there are {sorted(_implementations)}")
    return _implementations[name](request)


def attention_weights(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    mask: Mask | Bool[Array, ...] | None = None,
    bias: Float[Array, "b n t s"] | None = None,
    scale: float | None = None,
    rows: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Float[Array, "B n t S"]:
    """The weights of chosen heads and query rows, recomputed from queries and keys (all by default).

    Attention itself need not keep them: capture queries and keys, then ask here for what you want to see.
    """
    request = make_request(query, key, key, mask=mask, bias=bias, scale=scale)
    heads_index = jnp.arange(query.shape[2]) if heads is None else jnp.asarray(heads)
    rows_index = jnp.arange(query.shape[1]) if rows is None else jnp.asarray(rows)
    chosen = query[:, rows_index][:, :, heads_index]
    matching = key[:, :, heads_index // request.group]
    logits = jnp.einsum("btnh,bsnh->bnts", chosen, matching, preferred_element_type=jnp.float32) * request.scale
    if bias is not None:
        logits += jnp.broadcast_to(bias, (*bias.shape[:2], query.shape[1], key.shape[1]))[
            :, heads_index if bias.shape[1] > 1 else slice(None)
        ][:, :, rows_index]
    if request.mask is None:
        return masked_softmax(logits, None)
    tile = request.mask.tile(rows_index, jnp.arange(key.shape[1]))
    tile = tile if tile.shape[1] == 1 else tile[:, heads_index]
    return masked_softmax(logits, jnp.broadcast_to(tile, logits.shape))
