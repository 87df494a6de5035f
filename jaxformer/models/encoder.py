"""The encoder: embeddings, a stack of blocks without a causal mask, and a final norm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import jax
from flax import nnx
from jaxtyping import Array

from jaxformer import functional, masks
from jaxformer.config import kind_of
from jaxformer.functional.dropout import fold_in_name
from jaxformer.functional.tokens import Tokens, as_tokens, padding_mask
from jaxformer.models import transformer
from jaxformer.models.config import EncoderConfig, ImageEncoderConfig
from jaxformer.models.token_model import Input
from jaxformer.modules import AttentionFunction, Block, Embeddings, PatchEmbeddings, Stack, T5Bias
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.layers import normalized
from jaxformer.reprs import brief


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """The states of an encoder, and what hides a part of them: everything that a decoder needs."""

    states: jax.Array  # [B, S, D]
    valid: jax.Array | None = None  # Bool [B, S]; None: no padding
    segments: jax.Array | None = None  # int [B, S]: the packed sequence that each state belongs to

    __repr__ = brief

    def mask(self, target: Tokens) -> masks.Mask | None:
        """Returns the mask of cross-attention: it hides padding and, from packed targets, the other sequences."""
        mask = padding_mask(self.valid)
        if self.segments is None or target.segments is None:
            return mask
        same = masks.segments(target.segments, self.segments)
        return same if mask is None else mask & same


class Encoder(nnx.Module):
    """``tokens -> Memory``; every token sees all tokens that are not padding.

    `embeddings` may be any module ``(tokens, *, key)`` that returns the input of the stack, or `PatchEmbeddings` for
    images. Without a stack, the states are the embeddings.
    """

    embeddings: Callable[..., Array]

    def __init__(
        self,
        embeddings: Embeddings | PatchEmbeddings | Callable[..., Array],
        stack: Stack[Block] | None = None,
        norm: transformer.Norm | None = None,
        *,
        bias: T5Bias | None = None,
    ):
        self.embeddings, self.stack, self.norm, self.bias = embeddings, stack, norm, bias

    def __call__(
        self, inputs: Input, *, key: jax.Array | None = None, capture: Collection[str] = ()
    ) -> tuple[Memory, Intermediates]:
        """Returns the memory of sequences, and the intermediates of the layers that `capture` names; see `Stack`.

        Args:
          inputs: `Tokens`, an array of token ids, or another input of the embeddings, such as images.
          key: the key of dropout; None means no dropout.
        """
        embed, tokens, mask, valid, segments = self.embeddings, None, None, None, None
        if isinstance(inputs, Tokens) or isinstance(self.embeddings, Embeddings):
            inputs = tokens = as_tokens(inputs)
            mask, valid, segments = tokens.mask(), tokens.valid, tokens.segments
        with jax.named_scope("embedding"):
            x = embed(inputs, key=fold_in_name(key, "embedding"))
        intermediates: Intermediates = {}
        if self.stack is not None:
            x, intermediates = self.stack.run(
                x,
                tokens=tokens,
                mask=mask,
                bias=transformer.shared_bias(self.bias),
                key=fold_in_name(key, "layers"),
                capture=capture,
            )
        return Memory(normalized(x, self.norm), valid, segments), intermediates


def make_encoder(
    config: EncoderConfig | ImageEncoderConfig, *, attention: AttentionFunction = functional.attention, rngs: nnx.Rngs
) -> Encoder:
    """Returns an encoder with new parameters; use it through ``pure(make_encoder, config)``.

    Raises:
      ValueError: positions are in attention, but there are no layers.
    """
    bias = None
    if isinstance(config, ImageEncoderConfig):
        embeddings = PatchEmbeddings(
            config.image_size,
            config.patch_size,
            config.d_model,
            num_channels=config.num_channels,
            class_vector=config.has_class_vector,
            dropout=transformer.dropout_of_embeddings(config),
            dtype=config.compute_dtype,
            rngs=rngs,
        )
    else:
        tokens = transformer.make_tokens(config, config.vocab_size, rngs=rngs)
        embeddings = transformer.make_embeddings(
            config, tokens, transformer.make_position_vectors(config, tokens, rngs=rngs), rngs=rngs
        )
        if not config.num_layers and config.positions is not None and embeddings.positions is None:
            name = kind_of(config.positions)
            raise ValueError(f"{name} positions are in attention, so they have no effect without layers")
    stack = None
    if config.num_layers:
        stack = transformer.make_stack(config, config.num_layers, attention=attention, rngs=rngs)
        if isinstance(config, EncoderConfig):
            bias = transformer.make_shared_bias(config, bidirectional=True, rngs=rngs)
    return Encoder(embeddings, stack, transformer.make_final_norm(config, rngs=rngs), bias=bias)
