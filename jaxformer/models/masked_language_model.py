"""The masked language model: a bidirectional encoder that predicts masked tokens (Devlin et al. 2019, BERT)."""

from __future__ import annotations

from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional, sharding
from jaxformer.axes import constrain
from jaxformer.dims import check_rank
from jaxformer.models.config import EncoderConfig
from jaxformer.models.encoder import make_encoder
from jaxformer.models.transformer import ACTIVATIONS, balance_loss, balance_weight, make_norm, select, with_bias
from jaxformer.modules import AttentionFunction, CapturedAttention, Embeddings, Linear


class MaskedLanguageModel(nnx.Module):
    """``tokens -> logits`` of the token at each position; use it through ``pure(MaskedLanguageModel, config)``.

    The output head is BERT's: ``norm(activation(x W + b)) table^T + bias``, with the token embedding table.

    Raises:
      ValueError: the configuration is for images.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        if config.image_size is not None:
            raise ValueError(f"a masked language model reads tokens, got image_size {config.image_size}")
        self.encoder = make_encoder(config, attention=attention, rngs=rngs)
        self.transform = Linear(config.d_model, config.d_model, rngs=rngs)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config)
        self.load_balancing_weight = balance_weight(config)
        self.output_bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32), axes=("vocab",))

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        masked_positions: Int[Array, "B P"] | None = None,
        valid: Bool[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        types: Int[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B P V"]:
        """Returns logits, float32.

        Args:
          masked_positions: the positions whose tokens are scored; all by default, so that P is T.
          valid, positions, types, segments, key: see `Encoder`.
        """
        given = {"valid": valid, "positions": positions, "types": types, "segments": segments}
        x = self._head(self.encoder(tokens, key=key, **given).states, masked_positions)
        logits = self._embeddings.tokens.logits(x) + self.output_bias[...].reshape(1, 1, -1)
        return constrain(logits, "batch", "length", "vocab")

    def cross_entropy(
        self,
        tokens: Int[Array, "B T"],
        masked_positions: Int[Array, "B P"],
        labels: Int[Array, "B P"],
        *,
        where: Bool[Array, "B P"],
        valid: Bool[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        types: Int[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the loss of the logits at `masked_positions`, (sum, count), without holding them.

        In training (with a `key`) it includes the load-balancing loss of the experts, if there are any.

        Args:
          masked_positions: the positions of the tokens to predict.
          labels: the original tokens at these positions.
          where: True for the positions to count; rows with fewer positions than others are filled with repeated ones.
          valid, positions, types, segments, key: see `Encoder`.
        """
        check_rank("tokens", tokens, "B T")
        embedding = self._embeddings
        copies = embedding.tokens.copies(*tokens.shape, dtype=embedding.dtype)
        given = {"valid": valid, "positions": positions, "types": types, "segments": segments, "copies": copies}
        capture = ("experts",) if self.load_balancing_weight and key is not None else ()
        memory, intermediates = self.encoder.run(tokens, key=key, capture=capture, **given)
        x = self._head(memory.states, masked_positions)
        with jax.named_scope("loss"):
            if copies.shape[1] > 1:  # P positions need not be divisible into the parts of the length
                copies = embedding.tokens.copies(*masked_positions.shape, dtype=embedding.dtype)
            x, table = with_bias(x, copies, self.output_bias)
            total, count = sharding.linear_cross_entropy(x, table, labels, where=where)
        if intermediates:
            total += self.load_balancing_weight * count * balance_loss(intermediates["experts"], valid)
        return total, count

    def captured(
        self,
        tokens: Int[Array, "B T"],
        names: Collection[str] = ("encoder.self",),
        *,
        valid: Bool[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        types: Int[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
    ) -> dict[str, CapturedAttention]:
        """Returns the arguments of the named attentions in every layer, without dropout; the name is "encoder.self".

        Args:
          valid, positions, types, segments: see `Encoder`.
        """
        given = {"valid": valid, "positions": positions, "types": types, "segments": segments}
        intermediates = self.encoder.captured(tokens, **given)
        return select({f"encoder.{name}": x for name, x in intermediates.items()}, names)

    @property
    def _embeddings(self) -> Embeddings:
        assert isinstance(self.encoder.embeddings, Embeddings)
        return self.encoder.embeddings

    def _head(self, x: Array, masked_positions: Array | None) -> Array:
        if masked_positions is not None:
            x = jnp.take_along_axis(x, masked_positions[..., None], 1)
        return self.norm(self.activation(self.transform(x)))
