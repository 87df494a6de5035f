"""Sparsemax attention: a row of weights is the nearest point of the simplex, so that most of its weights are exactly 0.

    jaxformer train demo --attention examples/sparsemax.py:attention --out run
    python -m experiments.own_attention --smoke --out smoke     # beside softmax

In Python, ``jaxformer.train(config, out, attention=attention)`` or ``pure(models.LanguageModel, config,
attention=attention)``. Martins and Astudillo 2016, "From softmax to sparsemax" (arXiv:1602.02068): the weights of
logits z are max(z - t, 0), with the threshold t at which they add up to 1. There are no parameters, so attention is a
plain function, whose maps are its output for the identity.
"""

import jax
import jax.numpy as jnp

from jaxformer import masks


def sparsemax(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns the weights ``[..., S]`` of logits ``[..., S]``; they are 0 where `allowed` is False.

    The threshold is found by Newton's method from below, max(z) - 1, which needs no sorting and ends at the exact one:
    each step takes the threshold of the logits above the last. The gradient is that of the last step.
    """
    lowest = jnp.finfo(jnp.float32).min
    top = jnp.where(allowed, jax.lax.stop_gradient(logits), lowest).max(-1, keepdims=True)
    logits = jnp.where(allowed, logits - top, lowest)  # from here on, the largest is 0

    def above(threshold: jax.Array, logits: jax.Array) -> jax.Array:
        chosen = logits > threshold
        total = jnp.where(chosen, logits, 0.0).sum(-1, keepdims=True)
        return (total - 1) / jnp.maximum(chosen.sum(-1, keepdims=True), 1).astype(jnp.float32)

    fixed = jax.lax.stop_gradient(logits)
    step = lambda last: (last[1], jnp.maximum(last[1], above(last[1], fixed)))
    _, threshold = jax.lax.while_loop(lambda last: (last[0] < last[1]).any(), step, step((top, jnp.full_like(top, -1))))
    return jnp.where(allowed, jax.nn.relu(logits - above(threshold, logits)), 0.0)


def attention(query, key, value, *, mask=None, scale=None):
    """Returns ``[B, T, N, H]``. A model that has a bias, a score, sinks or dropout of attention weights refuses it.

    Keys and values may have fewer heads, K, each for a group of G = N / K heads of queries.
    """
    (batch, length, heads, dim), (num_keys, num_kv_heads) = query.shape, key.shape[1:3]
    allowed = jnp.ones((1, 1, 1, 1), bool) if mask is None else masks.as_mask(mask).dense(length, num_keys)
    allowed = jnp.broadcast_to(allowed, (batch, heads, length, num_keys))
    queries = query.reshape(batch, length, num_kv_heads, heads // num_kv_heads, dim)
    logits = jnp.einsum("btkgh,bskh->bkgts", queries, key, preferred_element_type=jnp.float32)
    logits = logits * (dim**-0.5 if scale is None else scale)
    weights = sparsemax(logits, allowed.reshape(logits.shape)).astype(value.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, value).reshape(*query.shape[:3], value.shape[3])
