"""Images as sequences of patches."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.feed_forward import add_shared
from jaxformer.modules.convolution import Convolution
from jaxformer.modules.embedding import LearnedPositions
from jaxformer.modules.initializers import normal


class PatchEmbeddings(nnx.Module):
    """The input of a vision Transformer (Dosovitskiy et al. 2021): patches, a class token, learned positions.

    An image is split into squares of `patch_size` pixels, row by row. One matrix projects each to D features: a
    convolution whose stride is the size of its kernel. The class token, if there is one, comes first.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        d_model: int,
        *,
        num_channels: int = 3,
        class_vector: bool = True,
        dropout: float = 0.0,
        dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        """Initializes the parameters.

        Raises:
          ValueError: the patches do not cover an image of this height and width.
        """
        if any(size < 1 or size % patch_size for size in image_size):
            raise ValueError(f"image_size must be a multiple of patch_size {patch_size}, got {image_size}")
        self.image_size, self.num_channels = image_size, num_channels
        layer = functools.partial(Convolution, num_channels, d_model, stride=patch_size, padding="valid", rngs=rngs)
        self.projection = layer(kernel_size=(patch_size, patch_size), axes=(None, "model"))
        draw = lambda: normal(rngs.params(), (d_model,), deviation=d_model**-0.5)
        self.class_vector = nnx.Param(draw(), axes=("model",)) if class_vector else None
        num_patches = (image_size[0] // patch_size) * (image_size[1] // patch_size)
        self.positions = LearnedPositions(num_patches + class_vector, d_model, rngs=rngs)
        self.dropout = dropout
        self.dtype = jnp.dtype(dtype)

    def __call__(
        self,
        images: Float[Array, "B h w C"],
        *,
        key: jax.Array | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns the vectors of images; S is the number of patches, plus one with a class token.

        Raises:
          ValueError: the images have another size; see `models.with_image_size`.
        """
        expected = (*self.image_size, self.num_channels)
        if images.shape[1:] != expected:
            raise ValueError(f"images must be [B, height, width, channels] = [B, {expected}], got {images.shape}")
        x = self.projection(images.astype(self.dtype))
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        if self.class_vector is not None:
            first = jnp.broadcast_to(self.class_vector[...], (x.shape[0], 1, x.shape[2])).astype(self.dtype)
            x = jnp.concatenate([first, x], 1)
        x = add_shared(x, self.positions(jnp.arange(x.shape[1])[None], x.shape[1]))
        return functional.dropout(constrain(x, "batch", "length", "model"), rate=self.dropout, key=key)
