"""The decoder-only Transformer language model (Radford et al. 2018, 2019)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional
from jaxformer.models.config import LanguageModelConfig
from jaxformer.models.decoder import Decoder, make_decoder
from jaxformer.models.decoder_state import Context, DecoderState, StepWeights
from jaxformer.models.decoding_mixin import DecodingMixin
from jaxformer.models.transformer import select
from jaxformer.modules import AttentionFunction, CapturedAttention


class LanguageModel(DecodingMixin[Context, DecoderState]):
    """``tokens -> logits``; use it through ``pure(LanguageModel, config)``."""

    decoder: Decoder

    def __init__(
        self,
        config: LanguageModelConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        self.decoder = make_decoder(config, attention=attention, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        valid: Bool[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits, float32: row t scores the token after ``tokens[:, :t + 1]``.

        Args:
          valid: True where a token is not padding; default: everywhere.
          positions: absolute positions, 0, 1, 2, ... by default; a token sees neither tokens after it in the row nor,
            without `segments`, tokens at later positions: see `Decoder`.
          segments: the index of the packed text that each token belongs to; tokens see only their own text. Pass
            `positions` that restart with each text, unless the scheme is relative.
          key: the key of dropout; None means no dropout.

        Raises:
          ValueError: `tokens` or `positions` do not have two dimensions, or a table has no vector for a position.

        >>> from jaxformer import models, pure
        >>> net = pure(LanguageModel, models.LanguageModelConfig(9, d_model=8, num_heads=2, d_ff=8, num_layers=1))
        >>> params, asarray = net.init(jax.random.key(0)), jax.numpy.asarray
        >>> packed = {"positions": asarray([[0, 1, 0]]), "segments": asarray([[1, 1, 2]])}
        >>> both, alone = net.apply(params, asarray([[3, 4, 5]]), **packed), net.apply(params, asarray([[5]]))
        >>> bool(jax.numpy.allclose(both[0, 2], alone[0, 0], atol=1e-5))
        True
        """
        return self.decoder(tokens, valid=valid, positions=positions, segments=segments, key=key)

    def cross_entropy(
        self,
        tokens: Int[Array, "B T"],
        labels: Int[Array, "B T"],
        *,
        valid: Bool[Array, "B T"] | None = None,
        where: Bool[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        right_padded: bool = False,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the loss of the logits, (sum, count), without holding them; training minimizes it.

        Args:
          labels: the token after each of `tokens`.
          where: True for labels to count, such as those of completions (prompts are `valid` too); default: `valid`.
          valid, positions, segments: see `__call__`.
          right_padded: see `Decoder.cross_entropy`.
          smoothing, z_loss: see `functional.cross_entropy`.
        """
        given: dict[str, Any] = {"valid": valid, "where": where, "positions": positions, "segments": segments}
        options = {"right_padded": right_padded, "smoothing": smoothing, "z_loss": z_loss, "key": key}
        return self.decoder.cross_entropy(tokens, labels, **given, **options)

    def captured(
        self,
        tokens: Int[Array, "B T"],
        names: Collection[str] = ("decoder.self",),
        *,
        valid: Bool[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
    ) -> dict[str, CapturedAttention]:
        """Returns the arguments of the named attentions in every layer, without dropout.

        The name is "decoder.self". Get the weights of some heads and rows by
        ``captured["decoder.self"].layer(2).weights(rows=..., heads=...)``; layers count from 0.

        Args:
          valid, positions, segments: see `__call__`.
        """
        intermediates = self.decoder.captured(tokens, valid=valid, positions=positions, segments=segments)
        return select({f"decoder.{name}": x for name, x in intermediates.items()}, names)

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
