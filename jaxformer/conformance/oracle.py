"""Attention and its gradients in float64 NumPy, written from the formula: what the kit compares every function with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Score = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    allowed: Any = None,
    bias: Any = None,
    scale: float | None = None,
    score: Score | None = None,
    kept: Any = None,
    rate: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the output ``[B, T, N, J]`` and the weights ``[B, N, T, S]``, before dropout.

    A query reads the keys that it may attend to and no others, so what the others hold has no effect; a query without
    keys gets 0. Consecutive query heads share a key head.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, S, K, H]`` and ``[B, S, K, J]``.
      allowed, bias, kept: arrays that broadcast to the weights; True = attend, True = kept by dropout of this `rate`.
      scale: the factor of the logits, ``H ** -0.5`` by default.
      score: a function of the scaled logits, and its derivative.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    (batch, num_queries, num_heads, dim), (_, num_keys, num_kv_heads, _) = query.shape, key.shape
    full = (batch, num_heads, num_queries, num_keys)
    allowed = np.broadcast_to(True if allowed is None else np.asarray(allowed), full)
    bias = np.broadcast_to(0.0 if bias is None else np.asarray(bias, np.float64), full)
    mixed = np.broadcast_to(1.0 if kept is None else np.asarray(kept) / (1 - rate), full)
    scale = dim**-0.5 if scale is None else scale
    output, weights = np.zeros((batch, num_queries, num_heads, value.shape[-1])), np.zeros(full)
    for b, n, t in np.ndindex(batch, num_heads, num_queries):
        row, shared = (b, n, t), n * num_kv_heads // num_heads
        seen = np.flatnonzero(allowed[row] & (bias[row] > -np.inf))
        if not len(seen):
            continue
        logits = key[b, seen, shared] @ query[b, t, n] * scale
        logits = (logits if score is None else score[0](logits)) + bias[row][seen]
        share = np.exp(logits - logits.max())
        weights[row][seen] = share / share.sum()
        output[b, t, n] = (weights[row] * mixed[row])[seen] @ value[b, seen, shared]
    return output, weights


def gradients(query: Any, key: Any, value: Any, upstream: Any, **options: Any) -> tuple[np.ndarray, ...]:
    """Returns the gradients of ``sum(output * upstream)`` with respect to query, key, value and the full bias.

    With p the weights, m = kept / (1 - rate) and y = (p m) v: dv = (p m)^T dy, dp = m (dy v^T),
    ds = p (dp - sum_s p dp), dq = scale ds k, dk = scale ds^T q; the last two have ds times the derivative of `score`.

    Args:
      options: those of `attention`; all arrays must be finite.
    """
    query, key, value, upstream = (np.asarray(x, np.float64) for x in (query, key, value, upstream))
    _, weights = attention(query, key, value, **options)
    kept, rate, score = options.get("kept"), options.get("rate", 0.0), options.get("score")
    mixed = np.broadcast_to(1.0 if kept is None else np.asarray(kept) / (1 - rate), weights.shape)
    scale = query.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"]
    d_query, d_key, d_value, d_bias = (np.zeros_like(x) for x in (query, key, value, weights))
    group = query.shape[2] // key.shape[2]
    for b, n in np.ndindex(*weights.shape[:2]):
        k, p, m, dy = n // group, weights[b, n], mixed[b, n], upstream[b, :, n]
        d_value[b, :, k] += (p * m).T @ dy
        dp = m * (dy @ value[b, :, k].T)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))
        d_bias[b, n] = ds
        if score is not None:
            ds = ds * score[1](scale * query[b, :, n] @ key[b, :, k].T)
        d_query[b, :, n] = scale * ds @ key[b, :, k]
        d_key[b, :, k] += scale * ds.T @ query[b, :, n]
    return d_query, d_key, d_value, d_bias
