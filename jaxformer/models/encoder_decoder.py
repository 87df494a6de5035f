"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017), and its pre-norm variant."""

from __future__ import annotations

import math
from collections.abc import Collection

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional, sharding
from jaxformer.dims import check_rank
from jaxformer.functional.dropout import fold_in_name
from jaxformer.models.config import EncoderDecoderConfig
from jaxformer.models.decoder import Decoder
from jaxformer.models.decoder_state import Context, DecoderState
from jaxformer.models.decoding_mixin import MemoryDecodingMixin
from jaxformer.models.encoder import Encoder, Memory
from jaxformer.models.transformer import (
    balance_loss,
    decoder_options,
    make_embeddings,
    make_final_norm,
    make_output,
    make_position_vectors,
    make_shared_bias,
    make_stack,
    make_tokens,
    select,
)
from jaxformer.modules import AttentionFunction, CapturedAttention


class EncoderDecoder(MemoryDecodingMixin[Context, DecoderState]):
    """``source, target -> logits``; use it through ``pure(EncoderDecoder, config)``."""

    decoder: Decoder

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
        shared = config.tie_embeddings in ("inputs", "all")
        source = None if shared else make_tokens(config, config.source_vocab_size, rngs=rngs)
        target = make_tokens(config, config.target_vocab_size, rngs=rngs)
        source_vectors = make_position_vectors(config, target if source is None else source, rngs=rngs)
        target_vectors = make_position_vectors(config, target, rngs=rngs)
        deep = functional.deep_norm_gains(config.num_encoder_layers, config.num_decoder_layers)
        parts = {"attention": attention, "rngs": rngs}
        encoder_stack = make_stack(config, config.num_encoder_layers, gains=deep[0], **parts)
        decoder_stack = make_stack(config, config.num_decoder_layers, memory_dim=config.d_model, gains=deep[1], **parts)
        untied = config.tie_embeddings in ("none", "inputs")
        output = make_output(config, config.target_vocab_size, rngs=rngs) if untied else None

        self.shared = shared
        self.encoder = Encoder(
            make_embeddings(config, target if source is None else source, source_vectors, rngs=rngs),
            encoder_stack,
            make_final_norm(config),
            bias=make_shared_bias(config, bidirectional=True, rngs=rngs),
        )
        self.decoder = Decoder(
            make_embeddings(config, target, target_vectors, rngs=rngs),
            decoder_stack,
            make_final_norm(config),
            output,
            bias=make_shared_bias(config, bidirectional=False, rngs=rngs),
            **decoder_options(config),
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
          source_valid, target_valid: True where a token is not padding; default: everywhere.
          key: the key of dropout; None means no dropout.
        """
        memory = self.encode(source, source_valid=source_valid, key=fold_in_name(key, "encoder"))
        return self.decode(target, memory, target_valid=target_valid, key=fold_in_name(key, "decoder"))

    def encode(
        self, source: Int[Array, "B S"], *, source_valid: Bool[Array, "B S"] | None = None, key: jax.Array | None = None
    ) -> Memory:
        """Returns the memory of a source; every source token sees all source tokens that are not padding."""
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
        where: Bool[Array, "B T"] | None = None,
        right_padded: bool = False,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        key: jax.Array | None = None,
        linear_loss: sharding.LinearLoss = sharding.linear_cross_entropy,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the loss of the teacher-forced logits, (sum, count), without holding them; training minimizes it.

        Args:
          labels: the token after each of `target`.
          where: True for labels to count; default: `target_valid`.
          smoothing, z_loss: see `functional.cross_entropy`.
          right_padded: a promise about `target_valid`: see `Decoder.cross_entropy`.
          linear_loss: see `Decoder.cross_entropy`.
        """
        for name, tokens, dims in (("source", source, "B S"), ("target", target, "B T")):
            check_rank(name, tokens, dims)
        embeddings = self.decoder.embeddings
        length = math.gcd(source.shape[1], target.shape[1])
        copies = embeddings.tokens.copies(target.shape[0], length, dtype=embeddings.dtype)
        balance = self.decoder.load_balancing_weight if key is not None else 0.0
        memory, intermediates = self.encoder.run(
            source,
            valid=source_valid,
            key=fold_in_name(key, "encoder"),
            copies=copies if self.shared else None,
            capture=("experts",) if balance else (),
        )
        total, count = self.decoder.cross_entropy(
            target,
            labels,
            memory,
            valid=target_valid,
            where=where,
            right_padded=right_padded,
            smoothing=smoothing,
            z_loss=z_loss,
            key=fold_in_name(key, "decoder"),
            copies=copies,
            linear_loss=linear_loss,
        )
        if balance:
            total += balance * count * balance_loss(intermediates["experts"], source_valid)
        return total, count

    def captured(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        names: Collection[str],
        *,
        source_valid: Bool[Array, "B S"] | None = None,
        target_valid: Bool[Array, "B T"] | None = None,
    ) -> dict[str, CapturedAttention]:
        """Returns the arguments of the named attentions in every layer, without dropout.

        Names: "encoder.self", "decoder.self", "decoder.cross". Get the weights of some heads and rows by
        ``captured["decoder.cross"].layer(2).weights(rows=..., heads=...)``; layers count from 0.

        Args:
          source_valid, target_valid: see `__call__`.
        """
        memory, intermediates = self.encoder.run(source, valid=source_valid, capture=("self",))
        result = {f"encoder.{name}": attention for name, attention in intermediates.items()}
        intermediates = self.decoder.captured(target, memory, valid=target_valid)
        return select(result | {f"decoder.{name}": x for name, x in intermediates.items()}, names)
