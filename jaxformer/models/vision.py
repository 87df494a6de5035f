"""The vision Transformer (Dosovitskiy et al. 2021): an encoder over patches, also resized to other image sizes."""

from __future__ import annotations

import dataclasses

from flax import nnx
from jaxtyping import Array

from jaxformer import functional
from jaxformer.models.classifier import Classifier
from jaxformer.models.config import ImageEncoderConfig
from jaxformer.models.vision_config import VisionTransformerConfig
from jaxformer.modules import AttentionFunction
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
