"""Multi-head attention layers: projections around an attention function."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer import functional, masks
from jaxformer.axes import constrain
from jaxformer.dims import resolve_head_dim
from jaxformer.functional.attention.base import ScoreFunction, row_of_positions
from jaxformer.functional.bias import Bias, Repeated
from jaxformer.functional.cache import KeyValueCache, empty_cache, seen_positions, seen_slots, slots_of, write
from jaxformer.modules.attention_function import (
    AttentionFunction,
    Heads,
    check_partial,
    check_result,
    check_rows,
    taken_options,
)
from jaxformer.modules.captured import CapturedAttention, Intermediates, split_attention
from jaxformer.modules.layers import UNIT_GAINS, Gains, RMSNorm, normalized, value_of, xavier_uniform, zeros_param
from jaxformer.modules.per_layer import for_this_layer
from jaxformer.modules.positions import PositionScheme
from jaxformer.reprs import brief


class KeyValue(NamedTuple):
    """The keys and values of a memory, to which cross-attention attends."""

    key: jax.Array  # [B, S, K, H]
    value: jax.Array  # [B, S, K, H]

    __repr__ = brief


class Output(nnx.Module):
    """The output projection ``W^O``, from the heads back to the dimension of the model."""

    def __init__(self, num_heads: int, head_dim: int, d_model: int, *, bias: bool, gain: float = 1.0, rngs: nnx.Rngs):
        shape = num_heads, head_dim, d_model
        kernel = xavier_uniform(rngs.params(), shape, fan_in=num_heads * head_dim, fan_out=d_model)
        self.kernel = nnx.Param(kernel * gain, axes=("heads", "head_dim", "model"))
        self.bias = zeros_param(d_model, ("model",), exists=bias)

    def __call__(self, x: Float[Array, "B T N H"]) -> Float[Array, "B T D"]:
        flat = x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])
        kernel = self.kernel[...].reshape(flat.shape[-1], -1)
        return functional.linear(flat, kernel, value_of(self.bias))


@dataclasses.dataclass(frozen=True)
class Logits:
    """Options for the attention logits, other than projections and positions."""

    scale: float | None = None
    """The factor of the logits; None for ``H ** -0.5``."""
    score: ScoreFunction | None = None
    """An elementwise function of the scaled logits, such as `functional.soft_cap`."""
    qk_norm: bool = False
    """Normalizes queries and keys (see `functional.qk_norm`), with a learned scale for each."""
    qk_norm_epsilon: float = 1e-6
    """The epsilon of these norms."""
    sinks: bool = False
    """Adds a learned logit to each head that takes weight away from the keys (`sinks` of `functional.attention`)."""


PLAIN_LOGITS = Logits()


class MultiHeadAttention(nnx.Module):
    """The parts that self-attention and cross-attention share: norms, sinks, attention and the output projection."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        d_model: int,
        *,
        logits: Logits,
        bias: bool,
        gain: float,
        dropout: float,
        attention: AttentionFunction,
        rngs: nnx.Rngs,
    ):
        self.output = Output(num_heads, head_dim, d_model, bias=bias, gain=gain, rngs=rngs)
        attention = for_this_layer(attention, rngs)
        settings = {"scale": logits.scale, "score": logits.score, "sinks": logits.sinks or None}
        check_partial(attention, [name for name, x in settings.items() if x is not None])
        norm = lambda: RMSNorm(head_dim, epsilon=logits.qk_norm_epsilon, axis="head_dim")
        self.query_norm, self.key_norm = (norm(), norm()) if logits.qk_norm else (None, None)
        self.sinks = zeros_param(num_heads, ("heads",), exists=logits.sinks)
        self.scale, self.score = logits.scale, logits.score
        self.attention, self.num_kv_heads = attention, num_kv_heads
        self.dropout = dropout

    def mix(
        self,
        query: Float[Array, "B T N H"],
        keys: Float[Array, "B S K H"],
        values: Float[Array, "B S K H"],
        *,
        mask: masks.Mask | Array | None,
        bias: Bias | Array | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the output of attention after the output projection."""
        arguments = taken_options(
            self.attention,
            mask=mask,
            bias=bias,
            scale=self.scale,
            score=self.score,
            sinks=value_of(self.sinks),
            dropout=functional.Dropout(self.dropout, key) if self.dropout and key is not None else None,
        )
        return self.output(check_result(self.attention(query, keys, values, **arguments), query, values))

    def check_steps(self) -> None:
        """Checks that cached steps can use the attention function of this layer."""
        num_heads, head_dim = self.output.kernel.shape[:2]
        heads = Heads(num_heads, self.num_kv_heads, head_dim, self.scale, self.score, self.sinks is not None)
        check_rows(self.attention, heads)

    def captured(
        self, query: Array, keys: Array, bias: Bias | Array | None = None, *, mask: masks.Mask | Array | None
    ) -> CapturedAttention:
        """Returns the arguments of the attention call that determine its weights."""
        attention, parameters = split_attention(self.attention)
        logits = value_of(self.sinks), mask, self.scale, self.score
        return CapturedAttention(query, keys, bias, *logits, attention, parameters)


class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention (Vaswani et al. 2017, 3.2.2) with one fused projection.

    The kernel ``[D, K, G + 2, H]`` holds, for each of K key heads, its G query heads, its key and its value: one
    matrix product computes all three, and a mesh can shard it over heads without splitting any of them.

    >>> layer = SelfAttention(8, num_heads=2, rngs=nnx.Rngs(0))
    >>> layer(jax.numpy.ones((1, 5, 8)), mask=masks.causal()).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        output_bias: bool | None = None,
        positions: PositionScheme | None = None,
        logits: Logits = PLAIN_LOGITS,
        dropout: float = 0.0,
        attention: AttentionFunction = functional.attention,
        gains: Gains = UNIT_GAINS,
        rngs: nnx.Rngs,
    ):
        """Initializes the parameters.

        Args:
          num_kv_heads: the number of key heads, by default the number of query heads.
          head_dim: by default ``d_model / num_heads``.
          bias, output_bias: True for biases in the projections of queries, keys and values, and of the output (by
            default as `bias`).
          positions: the position scheme; none by default.
        """
        if not isinstance(positions, PositionScheme | None):
            raise TypeError(f"positions must be a PositionScheme, such as positions.Rotary(), got {positions!r}")
        if num_kv_heads is None:
            num_kv_heads = num_heads
        dim = resolve_head_dim(d_model, num_heads, num_kv_heads, head_dim)
        group = num_heads // num_kv_heads
        fans = {"fan_in": d_model, "fan_out": num_heads * dim}
        kernel = xavier_uniform(rngs.params(), (d_model, num_kv_heads, group + 2, dim), **fans)
        gain = np.full((group + 2, 1), gains.query_key, np.float32)
        gain[-1] = gains.value
        self.kernel = nnx.Param(kernel * gain[None, None], axes=("model", "heads", "kv", "head_dim"))
        self.bias = zeros_param((num_kv_heads, group + 2, dim), ("heads", "kv", "head_dim"), exists=bias)
        if output_bias is None:
            output_bias = bias
        mixing = {"logits": logits, "dropout": dropout, "attention": attention, "gain": gains.output, "rngs": rngs}
        super().__init__(num_heads, num_kv_heads, dim, d_model, bias=output_bias, **mixing)
        self.positions = positions or PositionScheme()

    def project(self, x: Float[Array, "B T D"]) -> tuple[Array, Array, Array]:
        """Returns queries ``[B, T, N, H]``, keys and values ``[B, T, K, H]``, before positions are applied."""
        kernel = self.kernel
        if x.ndim != 3 or x.shape[2] != kernel.shape[0]:
            raise ValueError(f"x must be [B, T, D] with D = {kernel.shape[0]}, got shape {list(x.shape)}")
        fused = _project(x, kernel, self.bias)
        # The gradient of a split is one concatenation; the gradient of slices is a sum of padded arrays.
        query, keys, values = jax.lax.split(fused, (kernel.shape[2] - 2, 1, 1), axis=3)
        query = query.reshape(*x.shape[:2], query.shape[2] * query.shape[3], kernel.shape[-1])
        names = ("batch", "length", "heads", "head_dim")
        query, keys = normalized(query, self.query_norm), normalized(keys.squeeze(3), self.key_norm)
        return constrain(query, *names), constrain(keys, *names), constrain(values.squeeze(3), *names)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        mask: masks.Mask | Array | None = None,
        bias: Bias | Array | None = None,
        positions: Int[Array, "B T"] | None = None,
        key: jax.Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the attention of a sequence to itself.

        Args:
          bias: a bias of the logits in addition to the position scheme's, such as one that all layers share.
          positions: absolute positions; 0, 1, 2, ... by default.
        """
        query, keys, values = self.project(x)
        query, keys = (self.positions.rotate(y, positions) for y in (query, keys))
        query, bias = self._biased(query, bias)
        mask, bias = functional.at_positions(
            query, keys, query_positions=positions, key_positions=positions, mask=mask, bias=bias, scale=self.scale
        )
        if intermediates is not None:
            intermediates["self"] = self.captured(query, keys, bias, mask=mask)
        return self.mix(query, keys, values, mask=mask, bias=bias, key=key)

    def _biased(self, query: Array, bias: Bias | Array | None) -> tuple[Array, Bias | Array | None]:
        """Returns the queries, and the sum of `bias` and the bias of the position scheme (None if there is neither)."""
        query, scheme_bias = self.positions.bias(query, self.scale)
        if bias is None:
            return query, scheme_bias
        return query, bias if scheme_bias is None else bias + scheme_bias

    def empty_cache(self, rows: int, slots: int, dtype: DTypeLike) -> KeyValueCache:
        """Returns a cache of this layer's keys and values: see `functional.cache`."""
        _, num_kv_heads, _, head_dim = self.kernel.shape
        return empty_cache(rows, slots, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)

    def step(
        self,
        x: Float[Array, "B Q D"],
        cache: KeyValueCache,
        positions: Int[Array, "B K T"],
        *,
        lanes: Int[Array, "B K L"] | None = None,
        window: int | None = None,
        bias: Bias | Array | None = None,
    ) -> tuple[Float[Array, "B Q D"], KeyValueCache]:
        """Computes T positions of each of K hypotheses (Q = K T), which attend to their own past.

        Each result equals that of the full forward pass with a causal mask, or with ``masks.window(window - 1)``.

        Args:
          lanes: the map of lanes of a cache that the hypotheses share, after `take_lanes` for these positions; None if
            each has its own cache.
          window: the number of positions, including its own, that each position sees; None for its whole past. The
            cache still holds all positions.
        """
        num_slots = cache.key.shape[2]
        if lanes is None:
            rows, num_lanes = cache.key.shape[0], 1
            slots = positions.reshape(rows, -1)
            seen = seen_positions(slots, num_slots, window)
        else:
            rows, num_lanes = lanes.shape[:2]
            slots, seen = slots_of(lanes, positions), seen_slots(lanes, positions, window)
        row_positions = positions.reshape(rows, -1)
        query, keys, values = (y.reshape(*row_positions.shape, *y.shape[2:]) for y in self.project(x))
        query, keys = (self.positions.rotate(y, row_positions) for y in (query, keys))
        cache = write(cache, keys, values, slots)
        query, bias = self._biased(query, bias)
        if isinstance(bias, Bias) and num_lanes > 1:
            bias = Repeated(bias, num_lanes)
        keys, values = (x.astype(query.dtype).swapaxes(1, 2) for x in cache)
        mask, bias = functional.at_positions(
            query,
            keys,
            query_positions=row_positions,
            key_positions=row_of_positions(num_slots) // num_lanes,
            mask=masks.dense(seen, finite=True),
            bias=bias,
            scale=self.scale,
        )
        mixed = self.mix(query, keys, values, mask=mask, bias=bias)
        return mixed.reshape(x.shape), cache


class CrossAttention(MultiHeadAttention):
    """Multi-head attention from one sequence to another: queries from the decoder, keys and values from a memory.

    The memory is projected once, by `project`; decoding reuses the result for every step and every hypothesis.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        memory_dim: int | None = None,
        bias: bool = False,
        output_bias: bool | None = None,
        logits: Logits = PLAIN_LOGITS,
        dropout: float = 0.0,
        attention: AttentionFunction = functional.attention,
        gains: Gains = UNIT_GAINS,
        rngs: nnx.Rngs,
    ):
        """Initializes the parameters.

        Args:
          memory_dim: the dimension of the memory, by default `d_model`. See `SelfAttention` for the other arguments.
        """
        if num_kv_heads is None:
            num_kv_heads = num_heads
        if memory_dim is None:
            memory_dim = d_model
        dim = resolve_head_dim(d_model, num_heads, num_kv_heads, head_dim)
        fan_out = num_heads * dim
        query = xavier_uniform(rngs.params(), (d_model, num_heads, dim), fan_in=d_model, fan_out=fan_out)
        memory = xavier_uniform(rngs.params(), (memory_dim, num_kv_heads, 2, dim), fan_in=memory_dim, fan_out=fan_out)
        gain = np.array([[gains.query_key], [gains.value]], np.float32)[None, None]
        self.query = nnx.Param(query * gains.query_key, axes=("model", "heads", "head_dim"))
        self.key_value = nnx.Param(memory * gain, axes=("model", "heads", "kv", "head_dim"))
        self.query_bias = zeros_param(query.shape[1:], ("heads", "head_dim"), exists=bias)
        self.key_value_bias = zeros_param(memory.shape[1:], ("heads", "kv", "head_dim"), exists=bias)
        if output_bias is None:
            output_bias = bias
        mixing = {"logits": logits, "dropout": dropout, "attention": attention, "gain": gains.output, "rngs": rngs}
        super().__init__(num_heads, num_kv_heads, dim, d_model, bias=output_bias, **mixing)

    def project(self, memory: Float[Array, "B S E"]) -> KeyValue:
        """Returns the keys and values of a memory.

        Raises:
          ValueError: the dimension of the memory is not the one that the parameters were created for.
        """
        if memory.shape[2:] != self.key_value.shape[:1]:
            raise ValueError(f"memory must be [B, S, {self.key_value.shape[0]}], got shape {list(memory.shape)}")
        fused = _project(memory, self.key_value, self.key_value_bias)
        names = ("batch", "memory_length", "heads", "head_dim")
        keys, values = (x.squeeze(3) for x in jax.lax.split(fused, (1, 1), axis=3))
        return KeyValue(constrain(normalized(keys, self.key_norm), *names), constrain(values, *names))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: KeyValue,
        *,
        mask: masks.Mask | Array | None = None,
        positions: Int[Array, "B T"] | None = None,
        key: jax.Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the attention of a sequence to a memory.

        Args:
          memory: the result of `project`; anything else is a TypeError.
          positions: the absolute positions of the queries, if they matter to the mask; those of the memory are always
            0, 1, 2, ...
        """
        if not isinstance(memory, KeyValue):
            raise TypeError(f"memory must be the KeyValue that project returns, got a {type(memory).__name__}")
        query = normalized(_project(x, self.query, self.query_bias), self.query_norm)
        query = constrain(query, "batch", "length", "heads", "head_dim")
        mask, _ = functional.at_positions(query, memory.key, query_positions=positions, mask=mask)
        if intermediates is not None:
            intermediates["cross"] = self.captured(query, memory.key, mask=mask)
        keys, values = (x.astype(query.dtype) for x in memory)
        return self.mix(query, keys, values, mask=mask, key=key)


def _project(x: Array, kernel: nnx.Param, bias: nnx.Param | None) -> Array:
    """Projects ``[B, T, D]`` to ``[B, T, *heads]`` with one matrix product."""
    shape = kernel[...].shape
    flat_bias = jax.tree.map(lambda x: x.reshape(-1), value_of(bias))
    flat = functional.linear(x, kernel[...].reshape(shape[0], -1), flat_bias)
    return flat.reshape(*x.shape[:2], *shape[1:])
