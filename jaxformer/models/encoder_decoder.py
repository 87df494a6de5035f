"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017), and its pre-norm variant."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Literal

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional
from jaxformer.functional.dropout import site
from jaxformer.models.decoder import Context, Decoder, DecoderState
from jaxformer.models.encoder import Encoder, Memory
from jaxformer.models.transformer import (
    TransformerConfig,
    make_final_norm,
    make_output,
    make_positions,
    make_stack,
    select,
)
from jaxformer.modules import AttentionFunction, Embedding, Embeddings


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    """The shape of an encoder-decoder; the defaults are the paper's base model (table 3)."""

    source_vocab_size: int = 0
    """The number of source token ids; 0 is replaced by the tokenizer's before the model is built."""
    target_vocab_size: int = 0
    """The number of target token ids; 0 is replaced in the same way."""
    num_encoder_layers: int = 6
    """The number of encoder blocks."""
    num_decoder_layers: int = 6
    """The number of decoder blocks."""
    tie_embeddings: Literal["none", "decoder", "all"] = "all"
    """The embeddings that share one table: none; target and output; source, target and output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tie_embeddings == "all" and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"tie_embeddings='all' shares one table, so vocabularies must be equal: "
                f"source {self.source_vocab_size}, target {self.target_vocab_size}"
            )


class EncoderDecoder(nnx.Module):
    """``source, target -> logits``; use it through ``pure(EncoderDecoder, config)``."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        sizes = config.source_vocab_size, config.target_vocab_size
        if min(sizes) < 1:
            raise ValueError(f"source_vocab_size and target_vocab_size must be at least 1, got {sizes}")
        # The order of these lines determines the random values of the parameters.
        shared = config.tie_embeddings == "all"
        source = None if shared else Embedding(config.source_vocab_size, config.d_model, rngs=rngs)
        target = Embedding(config.target_vocab_size, config.d_model, rngs=rngs)
        source_positions = make_positions(config, rngs=rngs)
        target_positions = make_positions(config, rngs=rngs)
        encoder_stack = make_stack(config, config.num_encoder_layers, attention=attention, rngs=rngs)
        decoder_stack = make_stack(config, config.num_decoder_layers, cross=True, attention=attention, rngs=rngs)
        untied = config.tie_embeddings == "none"
        output = make_output(config, config.target_vocab_size, rngs=rngs) if untied else None

        options = {"dropout": config.dropout, "dtype": config.compute_dtype}
        self.shared = shared
        self.encoder = Encoder(
            Embeddings(target if source is None else source, source_positions, **options),
            encoder_stack,
            make_final_norm(config),
        )
        self.decoder = Decoder(
            Embeddings(target, target_positions, **options), decoder_stack, make_final_norm(config), output
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
        """Returns teacher-forced logits, float32: row t scores the token after ``target[:, :t + 1]``.

        Args:
          source_valid, target_valid: True where a token is real; default: everywhere.
          key: the key of dropout; None means no dropout.
        """
        memory = self.encode(source, source_valid=source_valid, key=site(key, "encoder"))
        return self.decode(target, memory, target_valid=target_valid, key=site(key, "decoder"))

    def encode(
        self, source: Int[Array, "B S"], *, source_valid: Bool[Array, "B S"] | None = None, key: jax.Array | None = None
    ) -> Memory:
        """Returns the memory of a source; every source token sees every real one."""
        return self.encoder(source, valid=source_valid, key=key)

    def decode(
        self,
        target: Int[Array, "B T"],
        memory: Memory,
        *,
        target_valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns teacher-forced logits of a target, given a memory."""
        return self.decoder(target, memory, valid=target_valid, key=key)

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
        """Returns the loss of the teacher-forced logits, (sum, count), without holding them; training minimizes it.

        Args:
          labels: the token after each of `target`; counted where `target_valid`.
          smoothing, z_loss: see `functional.cross_entropy`.
        """
        embeddings = self.decoder.embeddings
        length = math.gcd(source.shape[1], target.shape[1])
        copies = embeddings.tokens.copies(target.shape[0], length, dtype=embeddings.dtype)
        memory = self.encoder(
            source, valid=source_valid, key=site(key, "encoder"), copies=copies if self.shared else None
        )
        return self.decoder.cross_entropy(
            target,
            labels,
            memory,
            valid=target_valid,
            smoothing=smoothing,
            z_loss=z_loss,
            key=site(key, "decoder"),
            copies=copies,
        )

    def captured(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        names: Collection[str],
        *,
        source_valid: Bool[Array, "B S"] | None = None,
    ) -> dict[str, tuple[Array, Array]]:
        """Returns queries ``[L, B, T, N, H]`` and keys ``[L, B, S, N, H]`` of the named attentions, without dropout.

        Names: "encoder.self", "decoder.self", "decoder.cross". Give a layer's pair to `functional.attention_weights`
        with the rows and heads of interest.
        """
        memory, intermediates = self.encoder.captured(source, valid=source_valid)
        result = {f"encoder.{name}": pair for name, pair in intermediates.items()}
        intermediates = self.decoder.captured(target, memory)
        return select(result | {f"decoder.{name}": pair for name, pair in intermediates.items()}, names)

    def start(self, memory: Memory, *, beam_size: int, length: int) -> tuple[Context, DecoderState]:
        """Prepares to decode `length` positions with `beam_size` hypotheses of each sentence.

        The logits of a `step` beyond `length` are NaN.
        """
        return self.decoder.start(memory, batch_size=memory.states.shape[0], beam_size=beam_size, length=length)

    def step(
        self, tokens: Int[Array, "B K"], state: DecoderState, context: Context
    ) -> tuple[Float[Array, "B K V"], DecoderState]:
        """Returns the logits after one more token of each hypothesis: see `Decoder.step`."""
        return self.decoder.step(tokens, state, context)
