"""Multi-head attention layers: projections around an attention function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer import functional, masks
from jaxformer.axes import constrain
from jaxformer.functional.cache import KeyValueCache, empty_cache, write
from jaxformer.modules.initializers import xavier_uniform

Intermediates = dict[str, Any]
"""Intermediate results of a layer: queries and keys under "self" and "cross", a routing under "experts"."""

AttentionFunction = Callable[..., Array]
"""A function with the signature of `functional.attention`: ``query, key, value, *, mask, dropout``."""


class KeyValue(NamedTuple):
    """The keys and values of a memory, to which cross-attention attends."""

    key: jax.Array  # [B, S, K, H]
    value: jax.Array  # [B, S, K, H]


def head_dim(d_model: int, num_heads: int, num_kv_heads: int) -> int:
    """Returns ``d_model / num_heads``, after checking the numbers of heads.

    Raises:
      ValueError: `d_model` is not a multiple of `num_heads`, or `num_heads` not one of `num_kv_heads`.
    """
    if num_heads < 1 or d_model % num_heads:
        raise ValueError(f"d_model ({d_model}) must be divisible by num_heads ({num_heads})")
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"num_heads ({num_heads}) must be divisible by num_kv_heads ({num_kv_heads})")
    return d_model // num_heads


class Output(nnx.Module):
    """The output projection ``W^O``, from the heads back to the dimension of the model."""

    def __init__(self, num_heads: int, dim: int, d_model: int, *, bias: bool, rngs: nnx.Rngs):
        kernel = xavier_uniform(rngs.params(), (num_heads, dim, d_model), fan_in=num_heads * dim, fan_out=d_model)
        self.kernel = nnx.Param(kernel, axes=("heads", "head_dim", "model"))
        self.bias = nnx.Param(jnp.zeros(d_model), axes=("model",)) if bias else None

    def __call__(self, x: Float[Array, "B T N H"]) -> Float[Array, "B T D"]:
        flat = x.reshape(*x.shape[:2], -1)
        kernel = self.kernel[...].reshape(flat.shape[-1], -1)
        return functional.linear(flat, kernel, None if self.bias is None else self.bias[...])


class SelfAttention(nnx.Module):
    """Multi-head self-attention (Vaswani et al. 2017, 3.2.2) with one fused projection.

    The kernel ``[D, K, G + 2, H]`` holds, for each of K key heads, its G query heads, its key and its value: one
    matrix product computes all three, and a mesh can split it over heads without cutting through any of them.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        dim, group = head_dim(d_model, num_heads, num_kv_heads), num_heads // num_kv_heads
        kernel = xavier_uniform(rngs.params(), (d_model, num_kv_heads, group + 2, dim), fan_in=d_model, fan_out=d_model)
        self.kernel = nnx.Param(kernel, axes=("model", "heads", "kv", "head_dim"))
        zeros = jnp.zeros((num_kv_heads, group + 2, dim))
        self.bias = nnx.Param(zeros, axes=("heads", "kv", "head_dim")) if bias else None
        self.output = Output(num_heads, dim, d_model, bias=bias, rngs=rngs)
        self.attention = attention
        self.dropout = dropout

    def project(self, x: Float[Array, "B T D"]) -> tuple[Array, Array, Array]:
        """Returns queries ``[B, T, N, H]``, keys and values ``[B, T, K, H]``."""
        kernel = self.kernel[...]
        bias = None if self.bias is None else self.bias[...].reshape(-1)
        fused = functional.linear(x, kernel.reshape(kernel.shape[0], -1), bias)
        fused = fused.reshape(*x.shape[:2], *kernel.shape[1:])
        # The gradient of a split is one concatenation; that of slices is a sum of padded arrays.
        query, keys, values = jax.lax.split(fused, (kernel.shape[2] - 2, 1, 1), axis=3)
        query = query.reshape(*x.shape[:2], -1, kernel.shape[-1])
        names = ("batch", "length", "heads", "head_dim")
        return constrain(query, *names), constrain(keys.squeeze(3), *names), constrain(values.squeeze(3), *names)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        mask: masks.Mask | Array | None = None,
        key: jax.Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Float[Array, "B T D"]:
        query, keys, values = self.project(x)
        if intermediates is not None:
            intermediates["self"] = (query, keys)
        dropout = None if key is None else functional.Dropout(self.dropout, key)
        return self.output(self.attention(query, keys, values, mask=mask, dropout=dropout))

    def empty_cache(self, batch_size: int, beam_size: int, length: int, dtype: DTypeLike) -> KeyValueCache:
        """Returns a cache of this layer's keys and values with room for `length` positions."""
        _, num_kv_heads, _, dim = self.kernel.shape
        return empty_cache(batch_size, beam_size, length, num_kv_heads, dim, dtype)

    def step(
        self, x: Float[Array, "B K D"], cache: KeyValueCache, position: Int[Array, "B K"]
    ) -> tuple[Float[Array, "B K D"], KeyValueCache]:
        """Computes one position of each of K hypotheses of a sentence, which attends to its own past."""
        query, keys, values = self.project(x)
        cache = write(cache, keys, values, position)
        num_hypotheses = x.shape[0] * x.shape[1]
        past = masks.lengths(position.reshape(num_hypotheses) + 1)
        query = query.reshape(num_hypotheses, 1, *query.shape[2:])
        keys, values = (c.reshape(num_hypotheses, *c.shape[2:]) for c in cache)
        mixed = self.attention(query, keys, values, mask=past)
        return self.output(mixed.reshape(*x.shape[:2], *mixed.shape[2:])), cache


class CrossAttention(nnx.Module):
    """Multi-head attention from one sequence to another: queries from the decoder, keys and values from a memory.

    The memory is projected once, by `project`; decoding reuses that for every step and every hypothesis.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        dim = head_dim(d_model, num_heads, num_kv_heads)
        query = xavier_uniform(rngs.params(), (d_model, num_heads, dim), fan_in=d_model, fan_out=d_model)
        memory = xavier_uniform(rngs.params(), (d_model, num_kv_heads, 2, dim), fan_in=d_model, fan_out=d_model)
        self.query = nnx.Param(query, axes=("model", "heads", "head_dim"))
        self.key_value = nnx.Param(memory, axes=("model", "heads", "kv", "head_dim"))
        self.query_bias = nnx.Param(jnp.zeros(query.shape[1:]), axes=("heads", "head_dim")) if bias else None
        zeros = jnp.zeros(memory.shape[1:])
        self.key_value_bias = nnx.Param(zeros, axes=("heads", "kv", "head_dim")) if bias else None
        self.output = Output(num_heads, dim, d_model, bias=bias, rngs=rngs)
        self.attention = attention
        self.dropout = dropout

    def project(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Returns the keys and values of a memory."""
        fused = _project(memory, self.key_value, self.key_value_bias)
        names = ("batch", "memory_length", "heads", "head_dim")
        keys, values = (x.squeeze(3) for x in jax.lax.split(fused, (1, 1), axis=3))
        return KeyValue(constrain(keys, *names), constrain(values, *names))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: KeyValue,
        *,
        mask: masks.Mask | Array | None = None,
        key: jax.Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Float[Array, "B T D"]:
        query = constrain(_project(x, self.query, self.query_bias), "batch", "length", "heads", "head_dim")
        if intermediates is not None:
            intermediates["cross"] = (query, memory.key)
        dropout = None if key is None else functional.Dropout(self.dropout, key)
        return self.output(self.attention(query, memory.key, memory.value, mask=mask, dropout=dropout))


def _project(x: Array, kernel: nnx.Param, bias: nnx.Param | None) -> Array:
    """Maps ``[B, T, D]`` to ``[B, T, *heads]`` by one matrix product."""
    shape = kernel[...].shape
    flat_bias = None if bias is None else bias[...].reshape(-1)
    flat = functional.linear(x, kernel[...].reshape(shape[0], -1), flat_bias)
    return flat.reshape(*x.shape[:2], *shape[1:])
