"""What every attention implementation shares: the request, its checks, and the masked softmax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.functional.bias import Bias, whole
from jaxformer.functional.dropout import Dropout, flat_index, keep
from jaxformer.masks import Mask, as_mask

Score = Callable[[jax.Array], jax.Array]
"""An elementwise function of the scaled logits, before bias and mask: `soft_cap`, or one of your own."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One call of attention, checked.  `group` query heads share each key head: ``N = K * group``."""

    query: Any  # [B, T, N, H]; like the others an Array, or a ShapeDtypeStruct where somebody only asks
    key: Any  # [B, S, K, H]
    value: Any  # [B, S, K, J]
    mask: Mask | None
    bias: Array | Bias | None
    scale: float
    score: Score | None
    dropout: Dropout | None

    @property
    def group(self) -> int:
        return self.query.shape[2] // self.key.shape[2]


def make_request(query, key, value, *, mask=None, bias=None, scale=None, score=None, dropout=None) -> Request:
    """Checks shapes once, at trace time, for every implementation.

    Raises:
      ValueError: a rank, a head count, a head dim or a length that does not fit, with the got and expected value.
    """
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim != 4:
            raise ValueError(f"{name} must be [batch, length, heads, dim], got shape {list(array.shape)}")
    batch, num_queries, num_heads, head_dim = query.shape
    if key.shape[0] != batch or value.shape[0] != batch:
        raise ValueError(f"batch sizes differ: query {batch}, key {key.shape[0]}, value {value.shape[0]}")
    if key.shape[3] != head_dim:
        raise ValueError(f"query and key head dims must be equal, got {head_dim} and {key.shape[3]}")
    if key.shape[1:3] != value.shape[1:3]:
        raise ValueError(f"key and value must agree in [length, heads], got {key.shape[1:3]} and {value.shape[1:3]}")
    if key.shape[2] == 0 or num_heads % key.shape[2]:
        raise ValueError(f"query heads must be a multiple of key heads, got {num_heads} and {key.shape[2]}")
    if mask is not None:
        mask = as_mask(mask)
        covered = jax.eval_shape(lambda m: m.dense(num_queries, key.shape[1]), mask).shape
        _check_covers("mask", covered, (batch, num_heads, num_queries, key.shape[1]))
    if bias is not None:
        covered = (
            bias
            if not isinstance(bias, Bias)
            else jax.eval_shape(lambda b, q: whole(b, q, key.shape[1], 1.0), bias, query)
        )
        _check_covers("bias", covered.shape, (batch, num_heads, num_queries, key.shape[1]))
    if dropout is not None and not 0 <= dropout.rate < 1:
        raise ValueError(f"dropout rate must be in [0, 1), got {dropout.rate}")
    if dropout is not None and dropout.rate == 0:
        dropout = None
    if isinstance(scale, jax.core.Tracer):  # known only when the program runs, and what is static must be known now
        if scale.ndim != 0:
            raise ValueError(f"scale must be one number, got shape {list(scale.shape)}")
        wide = jnp.promote_types(query.dtype, jnp.float32)
        query, scale = (query.astype(wide) * scale.astype(wide)).astype(query.dtype), 1.0
    scale = head_dim**-0.5 if scale is None else float(scale)
    return Request(query, key, value, mask, bias, scale, score, dropout)


def _check_covers(name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if len(got) != 4 or any(g not in (1, e) for g, e in zip(got, expected, strict=True)):
        raise ValueError(f"{name} of shape {list(got)} does not broadcast to [B, N, T, S] = {list(expected)}")


def masked_softmax(logits: Float[Array, "*rows S"], mask: Bool[Array, "*rows S"] | None) -> Float[Array, "*rows S"]:
    """Softmax over the keys that the mask allows: exactly 0 elsewhere, and 0 throughout an empty row.

    The fill is finite on purpose: minus infinity minus minus infinity is NaN, forward and backward.

    >>> masked_softmax(jnp.zeros((2, 3)), jnp.array([[True, True, False], [False, False, False]])).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    return _softmax(logits, mask)


@jax.custom_jvp
def _softmax(logits: Array, mask: Array | None) -> Array:
    low = jnp.finfo(jnp.float32).min
    kept = logits if mask is None else jnp.where(mask, logits, low)
    top = jax.lax.stop_gradient(kept.max(-1, keepdims=True, initial=low))
    weights = jnp.exp(kept - top)
    if mask is not None:
        weights = jnp.where(mask, weights, 0.0)
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1.0, total)


@_softmax.defjvp
def _softmax_slope(given, slopes):
    """From the weights alone: without it the backward pass would keep the logits and the exponentials too."""
    weights, slope = _softmax(*given), slopes[0]
    slope = slope if given[1] is None else jnp.where(given[1], slope, 0.0)
    return weights, weights * (slope - (weights * slope).sum(-1, keepdims=True))


def keep_tile(dropout: Dropout, dims: tuple[int, int, int, int], indices: tuple[Array, ...]) -> Bool[Array, ...]:
    """Which weights dropout keeps in a tile: `indices` (b, n, t, s) broadcast, `dims` are the whole [B, N, T, S]."""
    return keep(dropout.key, dropout.rate, flat_index(dims, indices))
