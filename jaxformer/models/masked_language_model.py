"""The masked language model: a bidirectional encoder that predicts masked tokens (Devlin et al. 2019, BERT)."""

from __future__ import annotations

from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxformer import functional
from jaxformer.dims import check_rank
from jaxformer.functional.tokens import as_tokens
from jaxformer.models.config import EncoderConfig
from jaxformer.models.encoder import make_encoder
from jaxformer.models.token_model import Input, TokenModel, of_part, part_of
from jaxformer.models.transformer import ACTIVATIONS, balance_weight, make_norm
from jaxformer.modules import AttentionFunction, Embeddings, Linear
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.head import Head


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
        repeated ones, which do not count in the loss.
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
