"""The decoder-only Transformer language model (Radford et al. 2018, 2019)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Literal

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional
from jaxformer.models.decoder import Context, Decoder, DecoderState
from jaxformer.models.transformer import (
    TransformerConfig,
    make_final_norm,
    make_output,
    make_positions,
    make_stack,
    select,
)
from jaxformer.modules import AttentionFunction, Embedding, Embeddings


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TransformerConfig):
    """The shape of a language model; the defaults are GPT-2's choices (Radford et al. 2019) at a small size."""

    vocab_size: int = dataclasses.field(default=0, kw_only=False)
    """The number of token ids; 0 is replaced by the tokenizer's before the model is built."""
    num_layers: int = 6
    """The number of blocks."""
    norm_position: Literal["post", "pre"] = "pre"
    """The position of layer normalization: after the residual sum or before the sublayer."""
    activation: Literal["relu", "gelu", "gelu_tanh"] = "gelu"
    """The feed-forward nonlinearity."""
    positions: Literal["sinusoidal", "learned"] = "learned"
    """The kind of position vectors that are added to the token vectors."""
    tie_embeddings: bool = True
    """Makes the table of the token embeddings the output projection too."""
    causal: bool = True
    """Lets a token see only itself and the tokens before it. Without this mask, training learns to copy the next token,
    which does not exist yet when text is generated: the loss falls to 0 and the text is nonsense."""


class LanguageModel(nnx.Module):
    """``tokens -> logits``; use it through ``pure(LanguageModel, config)``."""

    def __init__(
        self,
        config: LanguageModelConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        if config.vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {config.vocab_size}")
        embeddings = Embeddings(
            Embedding(config.vocab_size, config.d_model, rngs=rngs),
            make_positions(config, rngs=rngs),
            dropout=config.dropout,
            dtype=config.compute_dtype,
        )
        self.decoder = Decoder(
            embeddings,
            make_stack(config, config.num_layers, attention=attention, rngs=rngs),
            make_final_norm(config),
            None if config.tie_embeddings else make_output(config, config.vocab_size, rngs=rngs),
            causal=config.causal,
        )

    def __call__(
        self, tokens: Int[Array, "B T"], *, valid: Bool[Array, "B T"] | None = None, key: jax.Array | None = None
    ) -> Float[Array, "B T V"]:
        """Returns logits, float32: row t scores the token after ``tokens[:, :t + 1]``.

        Args:
          valid: True where a token is real; default: everywhere.
          key: the key of dropout; None means no dropout.
        """
        return self.decoder(tokens, valid=valid, key=key)

    def cross_entropy(
        self,
        tokens: Int[Array, "B T"],
        labels: Int[Array, "B T"],
        *,
        valid: Bool[Array, "B T"] | None = None,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the loss of the logits, (sum, count), without holding them; training minimizes it.

        Args:
          labels: the token after each of `tokens`; counted where `valid`.
          smoothing, z_loss: see `functional.cross_entropy`.
        """
        return self.decoder.cross_entropy(tokens, labels, valid=valid, smoothing=smoothing, z_loss=z_loss, key=key)

    def captured(
        self, tokens: Int[Array, "B T"], names: Collection[str], *, valid: Bool[Array, "B T"] | None = None
    ) -> dict[str, tuple[Array, Array]]:
        """Returns queries and keys ``[L, B, T, N, H]`` of the named attentions, without dropout.

        The only name is "decoder.self". Give a layer's pair to `functional.attention_weights` with the rows and
        heads of interest.
        """
        intermediates = self.decoder.captured(tokens, valid=valid)
        return select({f"decoder.{name}": pair for name, pair in intermediates.items()}, names)

    def start(self, *, batch_size: int, beam_size: int, length: int) -> tuple[Context, DecoderState]:
        """Prepares to decode `length` positions, prefixes included, with `beam_size` hypotheses of each text.

        The logits of a `step` beyond `length` are NaN.
        """
        return self.decoder.start(batch_size=batch_size, beam_size=beam_size, length=length)

    def step(
        self, tokens: Int[Array, "B K"], state: DecoderState, context: Context
    ) -> tuple[Float[Array, "B K V"], DecoderState]:
        """Returns the logits after one more token of each hypothesis: see `Decoder.step`."""
        return self.decoder.step(tokens, state, context)
