"""The vision Transformer (Dosovitskiy et al. 2021): an encoder over patches, also resized to other image sizes."""

from __future__ import annotations

import dataclasses

from flax import nnx

from jaxformer import functional
from jaxformer.models.classifier import Classifier
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
