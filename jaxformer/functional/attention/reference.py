"""The definition of attention: one head of one example, lifted over heads and batch by ``jax.vmap``."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.functional.attention.base import Request, ScoreFunction, masked_softmax
from jaxformer.functional.bias import Bias, dense_bias
from jaxformer.functional.dropout import every_index, keep
from jaxformer.masks import Mask


def attention_head(
    query: Float[Array, "T H"],
    key: Float[Array, "S H"],
    value: Float[Array, "S J"],
    mask: Mask | Bool[Array, "#T #S"] | None = None,
    bias: Float[Array, "#T #S"] | Bias | None = None,
    kept: Bool[Array, "T S"] | None = None,
    sink: Float[Array, ""] | None = None,
    *,
    rate: float = 0.0,
    scale: float | None = None,
    score: ScoreFunction | None = None,
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
      sink: a logit that takes weight away from the keys: an extra term in the denominator of the softmax.
      scale: the factor of the logits; ``H ** -0.5`` by default, 1 for unscaled attention.
      score: an elementwise function of the scaled logits, applied before bias and mask.
      finite: promises that queries, keys and values are finite, even those that the mask hides: see `Mask.finite`.

    Raises:
      ValueError: arrays, a `Mask` or a `Bias` with several examples or heads, or an array of numbers as the mask.

    >>> import jax.numpy as jnp, numpy as np
    >>> query, key = jnp.array([[2., 0.], [0., 2.], [1., 1.]]), jnp.array([[0., 2.], [2., 0.], [1., 1.]])
    >>> output, weights = attention_head(query, key, jnp.array([[1., 2.], [1., 0.], [1., 1.]]))
    >>> print(np.asarray(weights[0]).round(3), np.asarray(output[0]).round(2))
    [0.045 0.768 0.187] [1.   0.28]
    """
    mask = _check_head(query, key, value, mask)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if mask is not None and not finite:
        query, key, value = _without_unseen(query, key, value, mask)
    logits = jnp.einsum("th,sh->ts", query, key, preferred_element_type=jnp.float32) * factor
    if score is not None:  # at 0, the logit of a masked pair, its slope may be infinite, and 0 times infinity is NaN
        logits = score(logits if mask is None else jnp.where(mask, logits, 1.0))
    if bias is not None:
        logits = logits + _bias_of_head(bias, query, key.shape[0], factor, mask)
    weights = _softmax(logits, mask, sink)
    mixing = weights if kept is None else jnp.where(kept, weights * (1 / (1 - rate)), 0.0)
    output = jnp.einsum("ts,sj->tj", mixing.astype(value.dtype), value, preferred_element_type=jnp.float32)
    if mask is not None and not finite:  # a weight of 0 is not enough: a value that another query sees may be NaN
        output = jnp.where(mask.any(1)[:, None], output, 0.0)
    return output.astype(query.dtype), weights


def _check_head(query: Array, key: Array, value: Array, mask: Mask | Array | None) -> Array | None:
    """Checks the ranks of one head of one example; returns its mask as an array."""
    for name, x in {"query": query, "key": key, "value": value}.items():
        if x.ndim != 2:
            raise ValueError(
                f"{name} must be [length, dim] of one head of one example, got shape {list(x.shape)}; "
                "functional.attention takes [batch, length, heads, dim]"
            )
    if isinstance(mask, Mask):
        return _of_one_head("mask", mask.dense(query.shape[0], key.shape[0]))
    if mask is not None and (mask.dtype != bool or mask.ndim != 2):
        raise ValueError(
            f"mask must be Boolean [T, S], True = attend, got {mask.dtype} {list(mask.shape)}"
            + ("" if mask.dtype == bool else "; use masks.from_binary for numbers 0 and 1, and bias= to add 0 and -inf")
        )
    return mask


def _without_unseen(query: Array, key: Array, value: Array, mask: Array) -> tuple[Array, Array, Array]:
    """Returns 0 in place of queries without a key, and of keys and values that no query sees.

    They may hold NaN or infinity, and a weight of 0 times NaN is NaN.
    """
    seen = mask.any(0)[:, None]
    return jnp.where(mask.any(1)[:, None], query, 0), jnp.where(seen, key, 0), jnp.where(seen, value, 0)


def _softmax(logits: Array, mask: Array | None, sink: Array | None) -> Array:
    """Returns the weights of the keys beside an extra key that every query sees."""
    if sink is None:
        return masked_softmax(logits, mask)
    wider = jnp.concatenate([logits, jnp.full((logits.shape[0], 1), sink.astype(jnp.float32))], 1)
    if mask is not None:
        mask = jnp.pad(mask, ((0, 0), (0, 1)), constant_values=True)
    return masked_softmax(wider, mask)[:, :-1]


def _bias_of_head(bias: Array | Bias, query: Array, num_keys: int, scale: float, mask: Array | None) -> Array:
    if isinstance(bias, Bias):
        allowed = jax.tree.map(lambda x: x[None, None], mask)
        bias = _of_one_head("bias", dense_bias(bias, query[None, :, None], num_keys, scale, allowed=allowed))
    return bias.astype(jnp.float32)


def _of_one_head(name: str, array: Array) -> Array:
    if array.shape[:2] != (1, 1):
        raise ValueError(
            f"attention_head computes one head of one example, got a {name} of {array.shape[0]} examples and "
            f"{array.shape[1]} heads; functional.attention takes it"
        )
    return array[0, 0]


def attention(request: Request) -> Float[Array, "B T N J"]:
    """Computes `attention_head` for all heads and examples. It stores all weights, so memory is O(T S)."""
    head, arrays = _lifted(request)
    output, _ = head(*arrays)
    return output.reshape(*request.query.shape[:3], output.shape[-1])


def attention_weights(request: Request) -> Float[Array, "B N T S"]:
    """Computes the weights of `attention_head` for all heads and examples."""
    head, arrays = _lifted(request)
    _, weights = head(*arrays)
    return weights.reshape(weights.shape[0], request.query.shape[2], *weights.shape[-2:])


def _lifted(request: Request) -> tuple[Callable[..., tuple[Array, Array]], list[Array | None]]:
    """Returns `attention_head` lifted over examples, key heads, and the query heads that share one; and its arrays.

    Mask, bias, kept weights and sinks are ``[1 or B, 1 or N, ...]``: examples or heads share those of size 1.
    """
    batch, num_queries, num_heads, head_dim = request.query.shape
    # Without a dimension for groups of one, XLA copies less.
    lifts = (batch, num_heads) if request.group == 1 else (batch, num_heads // request.group, request.group)
    of_heads = lambda x: lifts[1:] if x.shape[1] > 1 else (1,) * (len(lifts) - 1)
    extras = jax.tree.map(lambda x: x.reshape(x.shape[0], *of_heads(x), *x.shape[2:]), _extras(request))
    head: Callable[..., tuple[Array, Array]] = functools.partial(
        attention_head,
        rate=request.rate,
        scale=request.scale,
        score=request.score,
        finite=request.mask is not None and request.mask.finite,
    )
    for lift, in_axes, out_axes in [(2, (1, None, None), (1, 0)), (1, (1, 1, 1), (1, 0)), (0, (0, 0, 0), 0)]:
        if lift < len(lifts):
            axes = jax.tree.map(lambda x, lift=lift: 0 if x.shape[lift] == lifts[lift] else None, extras)
            head = jax.vmap(head, (*in_axes, *axes), out_axes)
    unshared = lambda x: [size for lift, size in enumerate(x.shape[: len(lifts)]) if size == lifts[lift]]
    extras = jax.tree.map(lambda x: x.reshape(*unshared(x), *x.shape[len(lifts) :]), extras)
    return head, [request.query.reshape(batch, num_queries, *lifts[1:], head_dim), request.key, request.value, *extras]


def _extras(request: Request) -> tuple[Array | None, Array | None, Array | None, Array | None]:
    """Returns the mask, the bias, the kept weights and the sinks of a request, each ``[1 or B, 1 or N, ...]``."""
    batch, num_queries, num_heads, _ = request.query.shape
    num_keys = request.key.shape[1]
    mask, bias, kept, sinks = None, None, None, None
    if request.mask is not None:
        mask = request.mask.dense(num_queries, num_keys)
    if request.bias is not None:
        bias = dense_bias(request.bias, request.query, num_keys, request.scale, allowed=mask)
    if request.dropout is not None:
        dims = batch, num_heads, num_queries, num_keys
        kept = keep(request.dropout.key, request.dropout.rate, every_index(dims))
    if request.sinks is not None:
        sinks = request.sinks[None]
    return mask, bias, kept, sinks
