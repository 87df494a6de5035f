"""The encoder: embeddings, a stack of blocks without a causal mask, and a final norm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxformer import functional, masks
from jaxformer.functional.dropout import fold_in_name
from jaxformer.models.config import EncoderConfig
from jaxformer.models.transformer import (
    Norm,
    dropout_of_embeddings,
    make_embeddings,
    make_final_norm,
    make_position_vectors,
    make_shared_bias,
    make_stack,
    make_tokens,
)
from jaxformer.modules import AttentionFunction, Block, Embeddings, PatchEmbeddings, Stack, T5Bias
from jaxformer.modules.captured import Intermediates
from jaxformer.reprs import brief


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """The states of an encoder and its padding mask: everything that a decoder needs."""

    states: jax.Array  # [B, S, D]
    valid: jax.Array | None  # Bool [B, S]

    __repr__ = brief

    @property
    def mask(self) -> masks.Mask | None:
        """The mask that hides padding; None if there is no padding."""
        return None if self.valid is None else masks.padding(self.valid)


class Encoder(nnx.Module):
    """``tokens -> Memory``; every token sees all tokens that are not padding.

    `embeddings` may be any module that returns the input of the stack, such as `PatchEmbeddings` for images. Without a
    stack, the states are the embeddings.
    """

    def __init__(
        self,
        embeddings: Embeddings | PatchEmbeddings | Callable[..., Array],
        stack: Stack[Block] | None = None,
        norm: Norm | None = None,
        *,
        bias: T5Bias | None = None,
    ):
        self.embeddings, self.stack, self.norm, self.bias = embeddings, stack, norm, bias

    def __call__(
        self,
        tokens: Shaped[Array, "B ..."],
        *,
        valid: Bool[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        types: Int[Array, "B S"] | None = None,
        segments: Int[Array, "B S"] | None = None,
        key: jax.Array | None = None,
        copies: Float[Array, "G C V D"] | None = None,
    ) -> Memory:
        """Returns the memory of a sequence.

        Args:
          tokens: ``int [B, S]``, or another input of the embeddings.
          valid: True where a token is not padding; default: everywhere.
          positions: absolute positions; 0, 1, 2, ... by default.
          types: the type of each token, for a model with token types; default: 0.
          segments: the index of the packed sequence that each token belongs to; tokens see only their own sequence.
          key: the key of dropout; None means no dropout.
          copies: see `Embedding`.
        """
        embedding_inputs: dict[str, Any] = {"types": types, "copies": copies}
        return self.run(tokens, valid=valid, positions=positions, segments=segments, key=key, **embedding_inputs)[0]

    def captured(
        self,
        tokens: Shaped[Array, "B ..."],
        *,
        valid: Bool[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        types: Int[Array, "B S"] | None = None,
        segments: Int[Array, "B S"] | None = None,
    ) -> Intermediates:
        """Returns the `CapturedAttention` of every layer, under "self"; `run` returns the memory too."""
        given: dict[str, Any] = {"valid": valid, "positions": positions, "types": types, "segments": segments}
        return self.run(tokens, **given, capture=("self",))[1]

    def run(
        self,
        tokens: Array,
        *,
        valid: Array | None = None,
        positions: Array | None = None,
        segments: Array | None = None,
        key: jax.Array | None = None,
        capture: Collection[str] = (),
        **embedding_inputs: Array | None,
    ) -> tuple[Memory, Intermediates]:
        """Returns the memory and the intermediates of the layers named in `capture`; see `Stack`.

        Args:
          embedding_inputs: additional arguments of the embeddings, such as `types`. They and `segments`, which the
            embeddings also get, are omitted if they are None.
        """
        further = {name: x for name, x in {"segments": segments, **embedding_inputs}.items() if x is not None}
        with jax.named_scope("embedding"):
            x = self.embeddings(tokens, valid=valid, positions=positions, key=fold_in_name(key, "embedding"), **further)
        mask = None if valid is None else masks.padding(valid)
        if segments is not None:
            mask = masks.segments(segments) if mask is None else mask & masks.segments(segments)
        intermediates: Intermediates = {}
        if self.stack is not None:
            x, intermediates = self.stack.run(
                x,
                mask=mask,
                valid=valid,
                bias=None if self.bias is None else self.bias(),
                positions=positions,
                key=fold_in_name(key, "layers"),
                capture=capture,
            )
        return Memory(x if self.norm is None else self.norm(x), valid), intermediates


def make_encoder(
    config: EncoderConfig, *, attention: AttentionFunction = functional.attention, rngs: nnx.Rngs
) -> Encoder:
    """Returns an encoder with new parameters; use it through ``pure(make_encoder, config)``.

    Raises:
      ValueError: there is neither a vocabulary nor an image size, or positions are in attention, but there are no
        layers.
    """
    if config.image_size is None:
        if config.vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {config.vocab_size}")
        tokens = make_tokens(config, config.vocab_size, rngs=rngs)
        embeddings = make_embeddings(config, tokens, make_position_vectors(config, tokens, rngs=rngs), rngs=rngs)
    else:
        options = {"num_channels": config.num_channels, "class_vector": config.has_class_vector}
        options |= {"dropout": dropout_of_embeddings(config), "dtype": config.compute_dtype}
        embeddings = PatchEmbeddings(config.image_size, config.patch_size, config.d_model, **options, rngs=rngs)
    if not config.num_layers:
        if config.positions != "none" and embeddings.positions is None:
            raise ValueError(f"{config.positions} positions are in attention, so they have no effect without layers")
        return Encoder(embeddings, norm=make_final_norm(config))
    stack = make_stack(config, config.num_layers, attention=attention, rngs=rngs)
    bias = make_shared_bias(config, bidirectional=True, rngs=rngs)
    return Encoder(embeddings, stack, make_final_norm(config), bias=bias)
