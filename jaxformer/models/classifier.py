"""A sequence classifier: an encoder, pooling to one vector, and a linear layer (Devlin et al. 2019, 3.2)."""

from __future__ import annotations

from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional
from jaxformer.functional.dropout import fold_in_name
from jaxformer.models.config import ClassifierConfig
from jaxformer.models.encoder import make_encoder
from jaxformer.models.transformer import balance_loss, balance_weight, select
from jaxformer.modules import AttentionFunction, CapturedAttention, Linear
from jaxformer.modules.captured import Intermediates


class Classifier(nnx.Module):
    """``tokens -> logits`` of the classes; use it through ``pure(Classifier, config)``.

    Its encoder has the same parameters as `MaskedLanguageModel`'s, under the same paths. With no layers, mean pooling
    and no positions, it is a linear layer on the average of token vectors.

    Raises:
      ValueError: there are fewer than two classes.
    """

    def __init__(
        self,
        config: ClassifierConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        if config.num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {config.num_classes}")
        self.encoder = make_encoder(config, attention=attention, rngs=rngs)
        self.output = Linear(config.d_model, config.num_classes, rngs=rngs)
        self.pooling, self.dropout = config.pooling, config.dropout
        self.load_balancing_weight = balance_weight(config)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B C"]:
        """Returns logits, float32.

        Args:
          valid: True where a token is not padding; default: everywhere. Class-token pooling reads the first token.
          key: the key of dropout; None means no dropout.
        """
        return self.run(tokens, valid=valid, key=key)[0]

    def training_logits(
        self,
        tokens: Int[Array, "B T"],
        *,
        valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B C"], Float[Array, ""]]:
        """Returns the logits, and the weighted load-balancing loss of the experts, to be added to the mean loss.

        The latter is 0 without experts or without a `key`.

        Args:
          valid, key: see `__call__`.
        """
        return self._training_logits(tokens, valid, key)

    def captured(
        self,
        tokens: Int[Array, "B T"],
        names: Collection[str] = ("encoder.self",),
        *,
        valid: Bool[Array, "B T"] | None = None,
    ) -> dict[str, CapturedAttention]:
        """Returns the arguments of the named attentions in every layer, without dropout; the name is "encoder.self"."""
        return self._captured(tokens, names, valid)

    def run(
        self,
        inputs: Array,
        *,
        valid: Array | None = None,
        key: jax.Array | None = None,
        capture: Collection[str] = (),
    ) -> tuple[Float[Array, "B C"], Intermediates]:
        """Returns the logits, and the intermediates of the encoder named in `capture`; see `Encoder.run`."""
        memory, intermediates = self.encoder.run(inputs, valid=valid, key=key, capture=capture)
        return self._logits(memory.states, valid, key), intermediates

    def _training_logits(
        self, inputs: Array, valid: Array | None, key: jax.Array | None, *, where: Array | None = None
    ) -> tuple[Array, Array]:
        capture = ("experts",) if self.load_balancing_weight and key is not None else ()
        logits, intermediates = self.run(inputs, valid=valid, key=key, capture=capture)
        if not intermediates:
            return logits, jnp.float32(0)
        routing = intermediates["experts"]
        if where is not None:  # all tokens of a row count, or none
            valid = jnp.broadcast_to(where[:, None], routing.probabilities.shape[1:3])
        return logits, self.load_balancing_weight * balance_loss(routing, valid)

    def _captured(
        self, inputs: Array, names: Collection[str], valid: Array | None = None
    ) -> dict[str, CapturedAttention]:
        _, intermediates = self.run(inputs, valid=valid, capture=("self",))
        return select({f"encoder.{name}": x for name, x in intermediates.items()}, names)

    def _logits(self, states: Array, valid: Array | None, key: jax.Array | None) -> Array:
        x = states.astype(jnp.float32)
        if self.pooling == "class_token":
            x = x[:, 0]
        elif valid is None:
            x = x.mean(1)
        else:  # a row without tokens, which only fills up a batch, gets zeros
            x = jnp.where(valid[..., None], x, 0.0).sum(1) / jnp.maximum(valid.sum(1, keepdims=True), 1).astype(x.dtype)
        return self.output(functional.dropout(x, rate=self.dropout, key=fold_in_name(key, "pooled")))
