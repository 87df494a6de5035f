"""The vision Transformer (Dosovitskiy et al. 2021): an encoder over patches, also resized to other image sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional
from jaxformer.models.classifier import Classifier
from jaxformer.models.vision_config import VisionTransformerConfig
from jaxformer.modules import AttentionFunction, CapturedAttention
from jaxformer.modules.pure import Params


class VisionTransformer(Classifier):
    """``images -> logits`` of the classes; use it through ``pure(VisionTransformer, config)``.

    It is a `Classifier` over patches instead of tokens. A class token before the patches is classified. With mean
    pooling there is no class token, and the mean of all patches is classified.
    """

    def __init__(
        self,
        config: VisionTransformerConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        super().__init__(config, attention=attention, rngs=rngs)

    def __call__(self, images: Float[Array, "B h w C"], *, key: jax.Array | None = None) -> Float[Array, "B K"]:
        """Returns logits, float32; `key` is for dropout, None for no dropout."""
        return self.run(images, key=key)[0]

    def training_logits(
        self, images: Float[Array, "B h w C"], *, where: Bool[Array, " B"] | None = None, key: jax.Array | None = None
    ) -> tuple[Float[Array, "B K"], Float[Array, ""]]:
        """Returns the logits, and the weighted load-balancing loss of the experts: see `Classifier`.

        Args:
          where: True for images whose patches the latter counts; other images only fill up a batch. Default: all.
        """
        return self._training_logits(images, None, key, where=where)

    def captured(
        self, images: Float[Array, "B h w C"], names: Collection[str] = ("encoder.self",)
    ) -> dict[str, CapturedAttention]:
        """Returns the arguments of the named attentions in every layer, without dropout; the name is "encoder.self"."""
        return self._captured(images, names)


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
    grid, new_grid = ((h // config.patch_size, w // config.patch_size) for h, w in (config.image_size, image_size))
    embeddings = params["encoder"]["embeddings"]
    table = functional.resize_grid_positions(
        embeddings["positions"]["table"],
        grid,
        new_grid,
        num_class_rows=int(config.has_class_vector),
        method="bicubic",
    )
    embeddings = embeddings | {"positions": {"table": table}}
    return resized, params | {"encoder": params["encoder"] | {"embeddings": embeddings}}
