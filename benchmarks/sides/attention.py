"""Attention by this library, by jax.nn and by Flax, with what jax allows to be said of the mask."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.sides.attention_data import arrays, save, valid
from benchmarks.sides.ours import product as product
from benchmarks.sides.ours import versions as versions
from jaxformer import functional, masks


def build(spec):
    query, key, value, upstream = (jnp.asarray(x, spec["dtype"]) for x in arrays(spec["shape"]))
    call = functools.partial(_attend, spec["side"], causal=spec["mask"] == "causal")
    whole = jnp.asarray(valid(spec["shape"]))

    def both(query, key, value, whole):
        output, pull = jax.vjp(lambda q, k, v: call(q, k, v, whole), query, key, value)
        return output, *pull(upstream.astype(output.dtype))

    function = both if spec["backward"] else lambda *given: (call(*given),)
    compiled = jax.jit(function).lower(query, key, value, whole).compile()
    save(spec, [np.asarray(x, np.float32) for x in compiled(query, key, value, whole)])
    return lambda: jax.block_until_ready(compiled(query, key, value, whole))


def _attend(side, query, key, value, valid, *, causal):
    """Each in its own words: a mask that has a name is not built."""
    if side in ("blockwise", "reference", "cudnn", "chosen"):
        mask = masks.causal() if causal else masks.padding(valid)
        implementation = None if side == "chosen" else side
        return functional.attention(query, key, value, mask=mask, implementation=implementation)
    length = query.shape[1]
    if side == "jax.nn":
        padding = None if causal else jnp.broadcast_to(valid[:, None, None], (valid.shape[0], 1, length, length))
        return jax.nn.dot_product_attention(query, key, value, mask=padding, is_causal=causal)
    mask = jnp.tril(jnp.ones((length, length), bool))[None, None] if causal else valid[:, None, None]
    return nnx.dot_product_attention(query, key, value, mask=mask)
