"""Classifiers: an encoder of tokens or of patches, pooling to one vector, and a linear layer.

Devlin et al. 2019, 3.2, for texts; Dosovitskiy et al. 2021 for images, which may be resized to other image sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional
from jaxformer.functional.dropout import fold_in_name
from jaxformer.models.config import ClassifierConfig, ImageEncoderConfig, TokenClassifierConfig
from jaxformer.models.encoder import make_encoder
from jaxformer.models.token_model import Input, check_names, of_part, part_of
from jaxformer.models.transformer import balance_loss, balance_weight
from jaxformer.models.vision_config import VisionTransformerConfig
from jaxformer.modules import AttentionFunction, CapturedAttention, Linear
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.pure import Params


class Classifier(nnx.Module):
    """``tokens -> logits`` of the classes; use it through ``pure(Classifier, config)``.

    Its encoder has the same parameters as `MaskedLanguageModel`'s, under the same paths. With no layers, mean pooling
    and no positions, it is a linear layer on the average of token vectors.

    Raises:
      ValueError: there are fewer than two classes.
    """

    def __init__(
        self,
        config: ClassifierConfig | TokenClassifierConfig | VisionTransformerConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        if config.num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {config.num_classes}")
        self.encoder = make_encoder(config, attention=attention, rngs=rngs)
        self.output = Linear(config.d_model, config.num_classes, rngs=rngs)
        self.pooling = None if isinstance(config, TokenClassifierConfig) else config.pooling
        self.dropout = config.dropout
        self.load_balancing_weight = balance_weight(config)

    def __call__(self, inputs: Input, *, key: jax.Array | None = None) -> Float[Array, "B ... C"]:
        """Returns logits, float32; class-token pooling reads the first token."""
        return self.run(inputs, key=key)[0]

    def training_logits(
        self, inputs: Input, *, where: Bool[Array, " B"] | None = None, key: jax.Array | None = None
    ) -> tuple[Float[Array, "B ... C"], Float[Array, ""]]:
        """Returns the logits, and the weighted load-balancing loss of the experts, to be added to the mean loss.

        The latter is 0 without experts or without a `key`.

        Args:
          where: True for rows whose tokens the latter counts, if rows only fill up a batch; by default, all valid
            tokens.
        """
        capture = ("encoder.experts",) if self.load_balancing_weight and key is not None else ()
        logits, captured = self.run(inputs, key=key, capture=capture)
        if not captured:
            return logits, jnp.float32(0)
        routing = captured["encoder.experts"]
        valid = None if where is None else jnp.broadcast_to(where[:, None], routing.probabilities.shape[1:3])
        return logits, self.load_balancing_weight * balance_loss(routing, valid)

    def captured(self, inputs: Input, names: Collection[str] = ("encoder.self",)) -> dict[str, CapturedAttention]:
        """Returns the arguments of the named attentions in every layer, without dropout; the name is "encoder.self"."""
        check_names(names, ("encoder.self",))
        return self.run(inputs, capture=names)[1]

    def run(
        self, inputs: Input, *, key: jax.Array | None = None, capture: Collection[str] = ()
    ) -> tuple[Float[Array, "B ... C"], Intermediates]:
        """Returns the logits, and what is captured of the layers of the encoder."""
        memory, intermediates = self.encoder(inputs, key=key, capture=part_of(capture, "encoder"))
        return self._logits(memory.states, memory.valid, key), of_part(intermediates, "encoder")

    def _logits(self, states: Array, valid: Array | None, key: jax.Array | None) -> Array:
        x = states.astype(jnp.float32)
        if self.pooling is None:
            pass
        elif self.pooling == "class_token":
            x = x[:, 0]
        elif valid is None:
            x = x.mean(1)
        else:  # a row without tokens, which only fills up a batch, gets zeros
            x = jnp.where(valid[..., None], x, 0.0).sum(1) / jnp.maximum(valid.sum(1, keepdims=True), 1).astype(x.dtype)
        return self.output(functional.dropout(x, rate=self.dropout, key=fold_in_name(key, "pooled")))


class TokenClassifier(Classifier):
    """``tokens -> logits`` of the classes of each token, ``[B, T, C]``; use ``pure(TokenClassifier, config)``.

    It is a `Classifier` without pooling.
    """


class VisionTransformer(Classifier):
    """``images -> logits`` of the classes; use it through ``pure(VisionTransformer, config)``.

    It is a `Classifier` over patches instead of tokens. A class token before the patches is classified. With mean
    pooling there is no class token, and the mean of all patches is classified.
    """


def with_image_size(
    config: VisionTransformerConfig, params: Params, image_size: tuple[int, int]
) -> tuple[VisionTransformerConfig, Params]:
    """Returns a vision Transformer for images of another size: its positions are interpolated in both directions.

    Patches keep their size, so there are more or fewer of them; all other parameters are the same arrays. The
    interpolation is bicubic, as in Hugging Face's ``interpolate_pos_encoding``.

    Raises:
      ValueError: the size is not a multiple of the patch size.
    """
    resized = dataclasses.replace(config, image_size=image_size)
    embeddings = params["encoder"]["embeddings"]
    embeddings = embeddings | {"positions": {"table": resized_table(embeddings["positions"]["table"], config, resized)}}
    return resized, params | {"encoder": params["encoder"] | {"embeddings": embeddings}}


def resized_table(table: Array, config: ImageEncoderConfig, resized: ImageEncoderConfig) -> Array:
    """Returns the table of positions of `config` for the image size of `resized`: see `with_image_size`."""
    rows = int(config.has_class_vector)
    return functional.resize_grid_positions(table, grid(config), grid(resized), num_class_rows=rows, method="bicubic")


def grid(config: ImageEncoderConfig) -> tuple[int, int]:
    """Returns the numbers of patches down and across an image."""
    height, width = config.image_size
    return height // config.patch_size, width // config.patch_size
