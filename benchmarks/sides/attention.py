"""Attention of this library, jax.nn and Flax, with the mask in the form that each of them prefers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.sides.arrays import attention_arrays, save, valid
from benchmarks.sides.attention_ideas import IDEAS
from benchmarks.sides.ours import compiled
from benchmarks.sides.ours import product as product
from benchmarks.sides.ours import versions as versions
from jaxformer import functional, masks


def build(spec):
    query, key, value, upstream = (jnp.asarray(x, spec["dtype"]) for x in attention_arrays(spec["shape"]))
    attend = functools.partial(_attend, spec["side"], causal=spec["mask"] == "causal")
    once = compiled(spec, attend, (query, key, value), upstream, jnp.asarray(valid(spec["shape"])))
    save(spec, [np.asarray(x[:, :: max(1, x.shape[1] // 512)], np.float32) for x in once()])
    return once


def _attend(side, query, key, value, valid, *, causal):
    """Computes attention by one side; a mask that a side knows by name is not materialized."""
    if side in ("blockwise", "reference", "cudnn", "chosen"):
        mask = masks.causal() if causal else masks.padding(valid)
        implementation = None if side == "chosen" else side
        return functional.attention(query, key, value, mask=mask, implementation=implementation)
    length = query.shape[1]
    if side in IDEAS:
        return IDEAS[side](query, key, value)
    if side == "jax.nn":
        padding = None if causal else jnp.broadcast_to(valid[:, None, None], (valid.shape[0], 1, length, length))
        return jax.nn.dot_product_attention(query, key, value, mask=padding, is_causal=causal)
    mask = jnp.tril(jnp.ones((length, length), bool))[None, None] if causal else valid[:, None, None]
    return nnx.dot_product_attention(query, key, value, mask=mask)
