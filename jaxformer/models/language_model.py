"""The decoder-only Transformer language model (Radford et al. 2018, 2019)."""

from __future__ import annotations

from collections.abc import Collection

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.models.config import LanguageModelConfig
from jaxformer.models.decoder import Decoder, make_decoder
from jaxformer.models.decoder_state import Context, DecoderState, StepWeights
from jaxformer.models.decoding_model import DecodingModel
from jaxformer.models.token_model import Input
from jaxformer.modules import AttentionFunction
from jaxformer.modules.captured import Intermediates


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
