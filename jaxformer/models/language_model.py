"""Language models: decoder-only (Radford et al. 2018, 2019), and masked (Devlin et al. 2019, BERT)."""

from __future__ import annotations

from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer import functional
from jaxformer.dims import check_rank
from jaxformer.functional.tokens import as_tokens
from jaxformer.models.config import EncoderConfig, LanguageModelConfig
from jaxformer.models.decoder import Decoder, make_decoder
from jaxformer.models.decoding_model import Context, DecoderState, DecodingModel, StepWeights
from jaxformer.models.encoder import make_encoder
from jaxformer.models.token_model import Input, TokenModel, of_part, part_of
from jaxformer.models.transformer import ACTIVATIONS, balance_weight, make_norm
from jaxformer.modules import AttentionFunction, Embeddings, Linear
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.head import Head


class LanguageModel(DecodingModel[Context, DecoderState]):
    """``tokens -> logits``; use it through ``pure(LanguageModel, config)``."""

    decoder: Decoder
    attention_names = ("decoder.self",)

    def __init__(
        self,
        config: LanguageModelConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        self.decoder = make_decoder(config, attention=attention, rngs=rngs)

    def states(
        self, tokens: Input, *, key: jax.Array | None = None, capture: Collection[str] = ()
    ) -> tuple[Float[Array, "B T D"], Intermediates]:
        """Returns the states of tokens: those of row t see ``tokens[:, :t + 1]``. See `TokenModel` and `Decoder`.

        >>> from jaxformer import models, pure
        >>> net = pure(LanguageModel, models.LanguageModelConfig(9, d_model=8, num_heads=2, d_ff=8, num_layers=1))
        >>> params, asarray = net.init(jax.random.key(0)), jax.numpy.asarray
        >>> packed = functional.Tokens(
        ...     asarray([[3, 4, 5]]), positions=asarray([[0, 1, 0]]), segments=asarray([[1, 1, 2]])
        ... )
        >>> both, alone = net.apply(params, packed), net.apply(params, asarray([[5]]))
        >>> bool(jax.numpy.allclose(both[0, 2], alone[0, 0], atol=1e-5))
        True
        """
        return self.decoder.states(tokens, key=key, capture=capture)

    def start(
        self,
        *,
        batch_size: int,
        beam_size: int,
        length: int,
        weights: StepWeights | None = None,
        cache_dtype: DTypeLike | None = None,
    ) -> tuple[Context, DecoderState]:
        """Prepares to decode `length` positions, prefixes included, with `beam_size` hypotheses per row.

        The logits of a `step` beyond `length` are NaN.

        Args:
          weights, cache_dtype: see `Decoder.start`.
        """
        return self.decoder.start(
            batch_size=batch_size, beam_size=beam_size, length=length, weights=weights, cache_dtype=cache_dtype
        )


class MaskedLanguageModel(TokenModel):
    """``tokens -> logits`` of the token at each position; use it through ``pure(MaskedLanguageModel, config)``.

    The output head is BERT's: ``norm(activation(x W + b)) table^T + bias``, with the token embedding table.
    """

    attention_names = ("encoder.self",)

    def __init__(
        self,
        config: EncoderConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        self.encoder = make_encoder(config, attention=attention, rngs=rngs)
        self.transform = Linear(config.d_model, config.d_model, rngs=rngs)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config, rngs=rngs)
        self.load_balancing_weight = balance_weight(config)
        self.output_bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32), axes=("vocab",))

    @property
    def head(self) -> Head:
        """The output projection: the table of token embeddings, and a bias."""
        return Head(self._embeddings.tokens.table[...], bias=self.output_bias[...])

    def states(
        self,
        tokens: Input,
        masked_positions: Int[Array, "B P"] | None = None,
        *,
        key: jax.Array | None = None,
        capture: Collection[str] = (),
    ) -> tuple[Float[Array, "B P D"], Intermediates]:
        """Returns the transformed states at `masked_positions`, by default at all positions, so that P is T.

        Labels are the original tokens at these positions. Rows with fewer masked positions than others are filled with
        repeated ones; give the loss `where`, True for the others, so that these do not count in it.
        """
        tokens = as_tokens(tokens)
        check_rank("tokens", tokens.ids, "B T")
        memory, intermediates = self.encoder(tokens, key=key, capture=part_of(capture, "encoder"))
        x = memory.states
        if masked_positions is not None:
            x = jnp.take_along_axis(x, masked_positions[..., None], 1)
        return self.norm(self.activation(self.transform(x))), of_part(intermediates, "encoder")

    def _counted(self, tokens: Input, masked_positions: Array | None = None) -> Array | None:
        return as_tokens(tokens).valid if masked_positions is None else None

    @property
    def _embeddings(self) -> Embeddings:
        assert isinstance(self.encoder.embeddings, Embeddings)
        return self.encoder.embeddings
