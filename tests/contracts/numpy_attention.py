"""Attention in float64 NumPy, one query at a time, written from the formula and not from the library."""

import numpy as np


def attention(query, key, value, *, allowed=None, bias=None, scale=None, score=None, kept=None, rate=0.0):
    """Returns output ``[B, T, N, J]`` and weights ``[B, N, T, S]``; `allowed`, `bias`, `kept` broadcast to the latter.

    `score` is a pair: a function of the scaled logits, and its derivative.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    (batch, num_queries, num_heads, dim), (_, num_keys, num_kv_heads, _) = query.shape, key.shape
    full = (batch, num_heads, num_queries, num_keys)
    allowed = np.broadcast_to(True if allowed is None else np.asarray(allowed), full)
    bias = np.broadcast_to(0.0 if bias is None else np.asarray(bias, np.float64), full)
    kept = np.broadcast_to(True if kept is None else np.asarray(kept), full)
    scale = 1 / np.sqrt(dim) if scale is None else scale
    function = (lambda x: x) if score is None else score[0]
    output, weights = np.zeros((batch, num_queries, num_heads, value.shape[-1])), np.zeros(full)
    for b, n, t in np.ndindex(batch, num_heads, num_queries):
        shared = n * num_kv_heads // num_heads
        seen = [s for s in range(num_keys) if allowed[b, n, t, s]]
        if not seen:
            continue
        logits = np.array([function(sum(query[b, t, n] * key[b, s, shared]) * scale) + bias[b, n, t, s] for s in seen])
        share = np.exp(logits - logits.max())
        share /= share.sum()
        for s, weight in zip(seen, share, strict=True):
            weights[b, n, t, s] = weight
            if kept[b, n, t, s]:
                output[b, t, n] += weight / (1 - rate) * value[b, s, shared]
    return output, weights


def gradients(query, key, value, upstream, **options):
    """Returns the gradients of ``sum(output * upstream)`` with respect to query, key, value and the full bias.

    With p the weights, m = kept / (1 - rate) and y = (p m) v: dv = (p m)^T dy, dp = m (dy v^T),
    ds = p (dp - sum_s p dp), dq = scale ds k, dk = scale ds^T q; the last two have ds times the derivative of `score`.
    """
    query, key, value, upstream = (np.asarray(x, np.float64) for x in (query, key, value, upstream))
    _, weights = attention(query, key, value, **options)
    kept, rate = options.get("kept"), options.get("rate", 0.0)
    mixed = np.broadcast_to(1.0 if kept is None else np.asarray(kept) / (1 - rate), weights.shape)
    scale = options.get("scale") or 1 / np.sqrt(query.shape[-1])
    d_query, d_key, d_value, d_bias = (np.zeros_like(x) for x in (query, key, value, weights))
    group = query.shape[2] // key.shape[2]
    for b, n in np.ndindex(*weights.shape[:2]):
        k, p, m, dy = n // group, weights[b, n], mixed[b, n], upstream[b, :, n]
        d_value[b, :, k] += (p * m).T @ dy
        dp = m * (dy @ value[b, :, k].T)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))
        d_bias[b, n] = ds
        if options.get("score") is not None:
            ds = ds * options["score"][1](scale * query[b, :, n] @ key[b, :, k].T)
        d_query[b, :, n] = scale * ds @ key[b, :, k]
        d_key[b, :, k] += scale * ds.T @ query[b, :, n]
    return d_query, d_key, d_value, d_bias


def hashed_bits(words, index):
    """Returns the library's dropout hash in Python integers: a round of lowbias32 for each key word.

    The part of the index beyond 32 bits changes the last word.
    """
    cut = (1 << 32) - 1
    bits = (index * 0x9E3779B1 + 0x85EBCA6B) & cut
    *others, last = (int(word) for word in words)
    for word in (*others, last ^ ((index >> 32) * 0xC2B2AE3D & cut)):
        bits ^= word
        bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & cut
        bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & cut
        bits ^= bits >> 16
    return bits


def kept(words, rate, shape):
    """Returns True for the elements of an array of `shape` that dropout keeps, by their row-major index."""
    size = int(np.prod(shape))
    return np.array([hashed_bits(words, i) >= round(rate * 2**32) for i in range(size)]).reshape(shape)
