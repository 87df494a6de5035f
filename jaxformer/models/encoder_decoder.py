"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017), and its pre-norm variant."""

from __future__ import annotations

from collections.abc import Collection

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.dims import check_rank
from jaxformer.functional.dropout import fold_in_name
from jaxformer.functional.tokens import as_tokens
from jaxformer.models import transformer
from jaxformer.models.config import EncoderDecoderConfig
from jaxformer.models.decoder import Decoder, decoder_of
from jaxformer.models.decoding_model import Context, DecoderState, MemoryDecodingModel
from jaxformer.models.encoder import Encoder, Memory
from jaxformer.models.token_model import Input, of_part, part_of
from jaxformer.modules import AttentionFunction
from jaxformer.modules.captured import Intermediates


class EncoderDecoder(MemoryDecodingModel[Context, DecoderState]):
    """``source, target -> logits``; use it through ``pure(EncoderDecoder, config)``."""

    decoder: Decoder
    attention_names = ("encoder.self", "decoder.self", "decoder.cross")

    def __init__(
        self,
        config: EncoderDecoderConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        sizes = config.source_vocab_size, config.target_vocab_size
        # The order of these lines determines the random values of the parameters.
        shared = config.tie_embeddings in ("inputs", "all")
        tables = [transformer.make_tokens(config, size, rngs=rngs) for size in sizes[shared:]]
        source, target = tables[0], tables[-1]
        source_vectors = transformer.make_position_vectors(config, source, rngs=rngs)
        target_vectors = transformer.make_position_vectors(config, target, rngs=rngs)
        deep = functional.deep_norm_gains(config.num_encoder_layers, config.num_decoder_layers)
        parts = {"attention": attention, "rngs": rngs}
        encoder_stack = transformer.make_stack(config, config.num_encoder_layers, gains=deep[0], **parts)
        decoder_stack = transformer.make_stack(
            config, config.num_decoder_layers, memory_dim=config.d_model, gains=deep[1], **parts
        )
        untied = config.tie_embeddings in ("none", "inputs")
        output = transformer.make_output(config, config.target_vocab_size, rngs=rngs) if untied else None

        self.encoder = Encoder(
            transformer.make_embeddings(config, source, source_vectors, rngs=rngs),
            encoder_stack,
            transformer.make_final_norm(config, rngs=rngs),
            bias=transformer.make_shared_bias(config, bidirectional=True, rngs=rngs),
        )
        self.decoder = decoder_of(config)(
            transformer.make_embeddings(config, target, target_vectors, rngs=rngs),
            decoder_stack,
            transformer.make_final_norm(config, rngs=rngs),
            output,
            bias=transformer.make_shared_bias(config, bidirectional=False, rngs=rngs),
        )

    def states(
        self, source: Input, target: Input, *, key: jax.Array | None = None, capture: Collection[str] = ()
    ) -> tuple[Float[Array, "B T D"], Intermediates]:
        """Returns the teacher-forced states of a target: those of row t see ``target[:, :t + 1]``. See `TokenModel`."""
        source = as_tokens(source)
        check_rank("source", source.ids, "B S")
        memory, encoded = self.encoder(source, key=fold_in_name(key, "encoder"), capture=part_of(capture, "encoder"))
        x, decoded = self.decoder.states(target, memory, key=fold_in_name(key, "decoder"), capture=capture)
        return x, of_part(encoded, "encoder") | decoded

    def encode(self, source: Input, *, key: jax.Array | None = None) -> Memory:
        """Returns the memory of a source; every source token sees all source tokens that are not padding."""
        return self.encoder(source, key=key)[0]

    def decode(self, target: Input, memory: Memory, *, key: jax.Array | None = None) -> Float[Array, "B T V"]:
        """Returns teacher-forced logits of a target, given a memory."""
        return self.decoder(target, memory, key=key)
