"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017), and its pre-norm variant."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional, masks, sharding
from jaxformer.axes import constrain
from jaxformer.functional.cache import KeyValueCache, empty_cache
from jaxformer.functional.dropout import site
from jaxformer.modules import (
    Block,
    CrossAttention,
    Embedding,
    FeedForward,
    KeyValue,
    LayerNorm,
    LearnedPositions,
    Linear,
    SelfAttention,
    Stack,
)
from jaxformer.modules.attention import head_dim
from jaxformer.modules.pure import Params

ARRANGEMENTS = {"post": functional.post_norm, "pre": functional.pre_norm}
ACTIVATIONS = {"relu": functional.relu, "gelu": functional.gelu, "gelu_tanh": functional.gelu_tanh}


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig:
    """The shape of an encoder-decoder; the defaults are the paper's base model (table 3)."""

    source_vocab_size: int = 0
    """Source token ids; 0 stands for the tokenizer's, to be filled in before the model is built."""
    target_vocab_size: int = 0
    """Target token ids; 0 likewise."""
    d_model: int = 512
    """D, the dimension of the model."""
    num_heads: int = 8
    """N, attention heads; must divide `d_model`."""
    d_ff: int = 2048
    """F, the dimension inside the feed-forward network."""
    num_encoder_layers: int = 6
    """Encoder blocks."""
    num_decoder_layers: int = 6
    """Decoder blocks."""
    dropout: float = 0.1
    """Probability of dropping embeddings and sublayer outputs."""
    attention_dropout: float = 0.0
    """Probability of dropping attention weights."""
    activation_dropout: float = 0.0
    """Probability of dropping feed-forward d_ff units."""
    norm_position: Literal["post", "pre"] = "post"
    """Where layer normalization stands: after the residual sum (the paper's) or before the sublayer."""
    activation: Literal["relu", "gelu", "gelu_tanh"] = "relu"
    """The feed-forward nonlinearity."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """How positions are told apart."""
    max_positions: int = 512
    """Longest sequence, for learned positions."""
    tie_embeddings: Literal["none", "decoder", "all"] = "all"
    """Which embeddings share one table: none; target and output; source, target and output."""
    attention_bias: bool = False
    """Whether attention projections have biases."""
    norm_epsilon: float = 1e-5
    """Added to the variance in layer normalization."""
    remat: bool = False
    """Recompute each block in the backward pass: less memory, a third more arithmetic."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Activations' dtype; parameters, softmax, norms, logits and loss stay float32."""

    def __post_init__(self) -> None:
        head_dim(self.d_model, self.num_heads, self.num_heads)
        for name, kind in typing.get_type_hints(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
                raise ValueError(f"{name} must be one of {typing.get_args(kind)}, got {value!r}")
            if name.endswith("dropout") and not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")
        if self.tie_embeddings == "all" and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"tie_embeddings='all' shares one table, so vocabularies must be equal: "
                f"source {self.source_vocab_size}, "
                f"target {self.target_vocab_size}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, got {self.d_model}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """What the encoder hands to the decoder."""

    states: jax.Array  # [B, S, D]
    valid: jax.Array | None  # Bool [B, S]

    @property
    def mask(self) -> masks.Mask | None:
        return None if self.valid is None else masks.padding(self.valid)


class Context(NamedTuple):
    """What stays the same through decoding: computed once by `EncoderDecoder.start`, never tiled by hypotheses."""

    memory: tuple[KeyValue, ...]  # of each decoder layer, [B, S, N, H]
    valid: jax.Array | None  # Bool [B, S]
    layers: tuple[Params, ...]  # the decoder blocks' parameters, unstacked


class DecoderState(NamedTuple):
    """What differs between hypotheses; every leaf begins ``[B, K, ...]``."""

    position: jax.Array  # int32 [B, K], equal everywhere: hypotheses advance in step
    caches: tuple[KeyValueCache, ...]  # of each decoder layer, [B, K, T, N, H]


class EncoderDecoder(nnx.Module):
    """``source, target -> logits``; use it through ``pure(EncoderDecoder, config)``."""

    def __init__(self, config: EncoderDecoderConfig, *, attention: Any = functional.attention, rngs: nnx.Rngs):
        if config.source_vocab_size < 1 or config.target_vocab_size < 1:
            sizes = (config.source_vocab_size, config.target_vocab_size)
            raise ValueError(f"a model needs vocabularies: got source and target sizes {sizes}")
        self.config = config
        self.source_embedding = (
            None if config.tie_embeddings == "all" else Embedding(config.source_vocab_size, config.d_model, rngs=rngs)
        )
        self.target_embedding = Embedding(config.target_vocab_size, config.d_model, rngs=rngs)
        learned = config.positions == "learned"
        self.source_positions = LearnedPositions(config.max_positions, config.d_model, rngs=rngs) if learned else None
        self.target_positions = LearnedPositions(config.max_positions, config.d_model, rngs=rngs) if learned else None

        def block(rngs: nnx.Rngs, *, cross: bool) -> Block:
            heads = {"bias": config.attention_bias, "dropout": config.attention_dropout, "attention": attention}
            activation, d_model = ACTIVATIONS[config.activation], config.d_model
            return Block(
                SelfAttention(d_model, config.num_heads, rngs=rngs, **heads),
                FeedForward(d_model, config.d_ff, activation=activation, dropout=config.activation_dropout, rngs=rngs),
                cross=CrossAttention(d_model, config.num_heads, rngs=rngs, **heads) if cross else None,
                norm=lambda: LayerNorm(d_model, epsilon=config.norm_epsilon),
                arrangement=ARRANGEMENTS[config.norm_position],
                dropout=config.dropout,
            )

        def stack(num_layers: int, cross: bool) -> Stack:
            return Stack(lambda rngs: block(rngs, cross=cross), num_layers, remat=config.remat, rngs=rngs)

        self.encoder = stack(config.num_encoder_layers, cross=False)
        self.decoder = stack(config.num_decoder_layers, cross=True)
        # Post-norm blocks end in a norm; pre-norm blocks leave an unnormalized sum.
        pre = config.norm_position == "pre"
        self.encoder_norm = LayerNorm(config.d_model, epsilon=config.norm_epsilon) if pre else None
        self.decoder_norm = LayerNorm(config.d_model, epsilon=config.norm_epsilon) if pre else None
        self.output = (
            Linear(config.d_model, config.target_vocab_size, bias=False, axes=("model", "vocab"), rngs=rngs)
            if config.tie_embeddings == "none"
            else None
        )

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        *,
        source_valid: Bool[Array, "B S"] | None = None,
        target_valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T V"]:
        """Teacher-forced logits, float32: row t scores the token after ``target[:, :t + 1]``.

        Args:
          source_valid, target_valid: True where a token is real; default: everywhere.
          key: the key for dropout, or None for none.
        """
        memory = self.encode(source, source_valid=source_valid, key=site(key, "encoder"))
        return self.decode(target, memory, target_valid=target_valid, key=site(key, "decoder"))

    def encode(
        self, source: Int[Array, "B S"], *, source_valid: Bool[Array, "B S"] | None = None, key: jax.Array | None = None
    ) -> Memory:
        """The memory of a source; every source token sees every real one."""
        return self._encode(source, source_valid, key, capture=False)[0]

    def decode(
        self,
        target: Int[Array, "B T"],
        memory: Memory,
        *,
        target_valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T V"]:
        """Teacher-forced logits of a target, given a memory."""
        return self._logits(self._decode(target, memory, target_valid, key, capture=False)[0])

    def cross_entropy(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        labels: Int[Array, "B T"],
        *,
        source_valid: Bool[Array, "B S"] | None = None,
        target_valid: Bool[Array, "B T"] | None = None,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The loss of the teacher-forced logits, (sum, count), without holding them; what training minimizes.

        Args:
          labels: the token after each of `target`; counted where `target_valid`.
          smoothing, z_loss: see `functional.cross_entropy`.
        """
        rows, length = target.shape[0], math.gcd(source.shape[1], target.shape[1])
        copies = self.target_embedding.copies(rows, length, dtype=jnp.dtype(self.config.compute_dtype))
        shared = functools.partial(self.target_embedding, copies=copies)
        memory, _ = self._encode(source, source_valid, site(key, "encoder"), capture=False, shared=shared)
        x, _ = self._decode(target, memory, target_valid, site(key, "decoder"), capture=False, shared=shared)
        table = copies if self.output is None else self.output.kernel[...].T
        return sharding.linear_cross_entropy(
            self._final(x), table, labels, where=target_valid, smoothing=smoothing, z_loss=z_loss
        )

    def captured(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        names: Collection[str],
        *,
        source_valid: Bool[Array, "B S"] | None = None,
    ) -> dict[str, tuple[Array, Array]]:
        """Queries ``[L, B, T, N, H]`` and keys ``[L, B, S, N, H]`` of the named attentions, without dropout.

        Names: "encoder.self", "decoder.self", "decoder.cross".  Give a layer's pair to
        `functional.attention_weights` for the rows and heads you want to see.
        """
        found: dict[str, tuple[Array, Array]] = {}
        memory, intermediates = self._encode(source, source_valid, None, capture=True)
        found.update({f"encoder.{name}": pair for name, pair in intermediates.items()})
        _, intermediates = self._decode(target, memory, None, None, capture=True)
        found.update({f"decoder.{name}": pair for name, pair in intermediates.items()})
        if unknown := set(names) - found.keys():
            raise ValueError(f"unknown attention names {sorted(unknown)}; there are {sorted(found)}")
        return {name: found[name] for name in names}

    def start(self, memory: Memory, *, beam_size: int, length: int) -> tuple[Context, DecoderState]:
        """Prepares to decode `length` positions with `beam_size` hypotheses of each sentence.

        A search may be no longer: the logits of a `step` beyond that are NaN.
        """
        layers = self.decoder.unstacked()
        projected = tuple(self.decoder.block(params).cross.project(memory.states) for params in layers)
        batch, (heads, dim) = memory.states.shape[0], projected[0].key.shape[2:]
        if self.target_positions is not None:
            functional.positions.check_positions(length, self.config.max_positions)
        caches = tuple(empty_cache(batch, beam_size, length, heads, dim, memory.states.dtype) for _ in layers)
        return Context(projected, memory.valid, layers), DecoderState(jnp.zeros((batch, beam_size), jnp.int32), caches)

    def step(
        self, tokens: Int[Array, "B K"], state: DecoderState, context: Context
    ) -> tuple[Float[Array, "B K V"], DecoderState]:
        """Logits after one more token of each hypothesis: that row of the teacher-forced logits.

        NaN beyond the positions that `start` prepared, where the last one's keys and values are overwritten.
        """
        position, length = state.position[0, 0], state.caches[0].key.shape[2]
        x = self._embed(tokens, self.target_embedding, self.target_positions, state.position, length)
        mask = None if context.valid is None else masks.padding(context.valid)
        caches = []
        for params, cache, memory in zip(context.layers, state.caches, context.memory, strict=True):
            block = self.decoder.block(params)
            x, cache = block.step(x, cache, memory, position=position, memory_mask=mask)
            caches.append(cache)
        x = jnp.where(position < length, x, jnp.nan)  # an index that is traced cannot be refused
        return self._logits(x), DecoderState(state.position + 1, tuple(caches))

    def _encode(self, source, valid, key, *, capture, shared=None):
        embedding = (shared or self.target_embedding) if self.source_embedding is None else self.source_embedding
        x = self._embed_sequence(source, embedding, self.source_positions, site(key, "embedding"))
        mask = None if valid is None else masks.padding(valid)
        x, intermediates = self.encoder(x, mask=mask, key=site(key, "layers"), capture=capture)
        return Memory(x if self.encoder_norm is None else self.encoder_norm(x), valid), intermediates

    def _decode(self, target, memory, valid, key, *, capture, shared=None):
        x = self._embed_sequence(target, shared or self.target_embedding, self.target_positions, site(key, "embedding"))
        mask = masks.causal() if valid is None else masks.causal() & masks.padding(valid)
        key = site(key, "layers")
        return self.decoder(x, memory.states, mask=mask, memory_mask=memory.mask, key=key, capture=capture)

    def _embed_sequence(self, tokens, embedding, positions, key):
        length = tokens.shape[1]
        # A constant, unless it would make the program large.
        index = (np if length * self.config.d_model <= 1 << 20 else jnp).arange(length)[None]
        x = self._embed(tokens, embedding, positions, index, length)
        return functional.dropout(x, rate=self.config.dropout, key=key)

    def _embed(self, tokens, embedding, positions, index, length):
        dtype = jnp.dtype(self.config.compute_dtype)
        if positions is None:
            offset = functional.sinusoidal(index, dim=self.config.d_model)
        else:
            offset = positions(jnp.asarray(index), length=length)
        return constrain(embedding(tokens, dtype=dtype) + offset.astype(dtype), "batch", "length", "model")

    def _final(self, x):
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def _logits(self, x):
        x = self._final(x)
        if self.output is None:
            return constrain(self.target_embedding.logits(x), "batch", "length", "vocab")
        # Not through self.output, whose products come back in the dtype of x: logits are float32 to the last bit.
        kernel = self.output.kernel[...].astype(x.dtype)
        logits = jnp.matmul(x, kernel, preferred_element_type=jnp.float32)
        return constrain(logits, "batch", "length", "vocab")
