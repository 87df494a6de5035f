"""The definition of attention: one head of one example, lifted over heads and batch by ``jax.vmap``."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.functional.attention.base import Request, ScoreFunction, keep_tile, masked_softmax
from jaxformer.functional.bias import Bias, dense_bias
from jaxformer.functional.dropout import Dropout
from jaxformer.masks import Mask


def attention_head(
    query: Float[Array, "T H"],
    key: Float[Array, "S H"],
    value: Float[Array, "S J"],
    *,
    mask: Mask | Bool[Array, "#T #S"] | None = None,
    bias: Float[Array, "#T #S"] | Bias | None = None,
    kept: Bool[Array, "T S"] | None = None,
    rate: float = 0.0,
    scale: float | None = None,
    score: ScoreFunction | None = None,
    sink: Float[Array, ""] | None = None,
    finite: bool = False,
) -> tuple[Float[Array, "T J"], Float[Array, "T S"]]:
    r"""Computes scaled dot-product attention for one head of one example; returns the output and the weights.

    .. math:: A = \mathrm{softmax}(Q K^\top / \sqrt{H} + \mathrm{bias}), \qquad Y = A V

    (Vaswani et al. 2017, eq. 1). Logits and softmax are float32. A masked pair has weight exactly 0, a query
    with no key to attend to gets output 0, and a key that no query attends to is inert (see `jaxformer.masks`).

    Args:
      mask: True = attend; a `Mask` must be the same for every example and head.
      bias: a term added to the scaled logits; a `Bias` must be the same for every example and head.
      kept: True for the weights that dropout with probability `rate` keeps; the returned weights are before dropout.
      scale: the factor of the logits; ``H ** -0.5`` by default, 1 for unscaled attention.
      score: an elementwise function of the scaled logits, applied before bias and mask.
      sink: a logit that takes weight away from the keys: an extra term in the denominator of the softmax.
      finite: promises that queries, keys and values are finite, even those that the mask hides: see `Mask.finite`.

    Raises:
      ValueError: arrays, a `Mask` or a `Bias` with several examples or heads, or an array of numbers as the mask.

    >>> import jax.numpy as jnp, numpy as np
    >>> query, key = jnp.array([[2., 0.], [0., 2.], [1., 1.]]), jnp.array([[0., 2.], [2., 0.], [1., 1.]])
    >>> output, weights = attention_head(query, key, jnp.array([[1., 2.], [1., 0.], [1., 1.]]))
    >>> print(np.asarray(weights[0]).round(3), np.asarray(output[0]).round(2))
    [0.045 0.768 0.187] [1.   0.28]
    """
    for name, x in {"query": query, "key": key, "value": value}.items():
        if x.ndim != 2:
            raise ValueError(
                f"{name} must be [length, dim] of one head of one example, got shape {list(x.shape)}; "
                "functional.attention takes [batch, length, heads, dim]"
            )
    if isinstance(mask, Mask):
        mask = _of_one_head("mask", mask.dense(query.shape[0], key.shape[0]))
    elif mask is not None and (mask.dtype != bool or mask.ndim != 2):
        raise ValueError(
            f"mask must be Boolean [T, S], True = attend, got {mask.dtype} {list(mask.shape)}"
            + ("" if mask.dtype == bool else "; use masks.from_binary for numbers 0 and 1, and bias= to add 0 and -inf")
        )
    if mask is not None and not finite:
        # A weight of 0 times NaN is NaN, so unseen keys and values and empty queries are replaced by 0.
        query = jnp.where(mask.any(1)[:, None], query, 0)
        seen = mask.any(0)[:, None]
        key, value = jnp.where(seen, key, 0), jnp.where(seen, value, 0)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if isinstance(bias, Bias):
        allowed = None if mask is None else mask[None, None]
        bias = _of_one_head("bias", dense_bias(bias, query[None, :, None], key.shape[0], factor, allowed=allowed))
    logits = jnp.einsum("th,sh->ts", query, key, preferred_element_type=jnp.float32) * factor
    if score is not None:
        # The derivative of a score may be infinite at 0, the logit of a masked pair, and 0 times infinity is NaN.
        logits = score(logits if mask is None else jnp.where(mask, logits, 1.0))
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    if sink is None:
        weights = masked_softmax(logits, mask)
    else:  # an extra key, which every query sees
        wider = jnp.concatenate([logits, jnp.full((query.shape[0], 1), sink.astype(jnp.float32))], 1)
        weights = masked_softmax(wider, None if mask is None else jnp.pad(mask, ((0, 0), (0, 1)), constant_values=True))
        weights = weights[:, :-1]
    mixing = weights if kept is None else jnp.where(kept, weights * (1 / (1 - rate)), 0.0)
    output = jnp.einsum("ts,sj->tj", mixing.astype(value.dtype), value, preferred_element_type=jnp.float32)
    if mask is not None and not finite:
        output = jnp.where(mask.any(1)[:, None], output, 0.0)  # a key that another query sees may hold NaN
    return output.astype(query.dtype), weights


def _of_one_head(name: str, array: Array) -> Array:
    if array.shape[:2] != (1, 1):
        raise ValueError(
            f"attention_head computes one head of one example, got a {name} of {array.shape[0]} examples and "
            f"{array.shape[1]} heads; functional.attention takes it"
        )
    return array[0, 0]


def attention(request: Request) -> tuple[Float[Array, "B T N J"], Float[Array, "B N T S"]]:
    """Computes `attention_head` for all heads and examples. It stores all weights, so memory is O(T S)."""
    batch, num_queries, num_heads, head_dim = request.query.shape
    num_keys, num_kv_heads = request.key.shape[1:3]
    rate = request.dropout.rate if request.dropout else 0.0
    finite = request.mask is not None and request.mask.finite
    head = functools.partial(attention_head, scale=request.scale, score=request.score, rate=rate, finite=finite)
    dims = batch, num_heads, num_queries, num_keys
    kept = None if request.dropout is None else _kept_weights(request.dropout, dims)
    mask = None if request.mask is None else request.mask.dense(num_queries, num_keys)
    bias = request.bias
    if bias is not None:
        bias = dense_bias(bias, request.query, num_keys, request.scale, allowed=mask)
    sinks = None if request.sinks is None else request.sinks[None]
    extras = {"mask": mask, "bias": bias, "kept": kept, "sink": sinks}
    extras = {name: x for name, x in extras.items() if x is not None}

    def example(query, key, value, extras):  # query [T, N, H], key [S, K, H]; extras [N | 1, T, S], and sinks [N]
        per_head = {n: x.shape[0] != 1 or num_heads == 1 for n, x in extras.items()}
        axes = {n: 0 if per_head[n] else None for n in extras}
        call = lambda q, k, v, e: head(q, k, v, **e)
        if request.group == 1:  # without a dimension for groups, XLA copies less
            single = {n: x if per_head[n] else x[0] for n, x in extras.items()}
            return jax.vmap(call, (1, 1, 1, axes), (1, 0))(query, key, value, single)
        grouped = query.reshape(num_queries, num_kv_heads, request.group, head_dim)
        split = {
            n: x.reshape(num_kv_heads, request.group, *x.shape[1:]) if per_head[n] else x[0] for n, x in extras.items()
        }
        over_group = jax.vmap(call, (1, None, None, axes), (1, 0))
        over_heads = jax.vmap(over_group, (1, 1, 1, axes), (1, 0))
        output, weights = over_heads(grouped, key, value, split)
        return output.reshape(num_queries, num_heads, output.shape[-1]), weights.reshape(
            num_heads, num_queries, num_keys
        )

    shared = {n: x.shape[0] == 1 and batch != 1 for n, x in extras.items()}
    extras = {n: x[0] if shared[n] else x for n, x in extras.items()}
    axes = {n: None if shared[n] else 0 for n in extras}
    return jax.vmap(example, (0, 0, 0, axes))(request.query, request.key, request.value, extras)


def _kept_weights(dropout: Dropout, dims: tuple[int, int, int, int]) -> Bool[Array, "B N T S"]:
    indices = tuple(jax.lax.broadcasted_iota(jnp.uint32, dims, dim) for dim in range(4))
    return keep_tile(dropout, dims, indices)
