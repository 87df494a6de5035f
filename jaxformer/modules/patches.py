"""Images as sequences of patches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.modules.embedding import LearnedPositions
from jaxformer.modules.initializers import normal
from jaxformer.modules.linear import Linear


class PatchEmbeddings(nnx.Module):
    """The input of a vision Transformer (Dosovitskiy et al. 2021): patches, a class vector, learned positions.

    An image is cut into squares of `patch_size` pixels, row by row. Each is flattened channel by channel and mapped to
    D features by one matrix. The class vector comes first.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        d_model: int,
        *,
        num_channels: int = 3,
        dropout: float = 0.0,
        dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        """Draws the parameters.

        Raises:
          ValueError: the patches do not cover an image of this height and width.
        """
        if any(size < 1 or size % patch_size for size in image_size):
            raise ValueError(f"image_size must be a multiple of patch_size {patch_size}, got {image_size}")
        self.image_size, self.patch_size, self.num_channels = image_size, patch_size, num_channels
        num_patches = (image_size[0] // patch_size) * (image_size[1] // patch_size)
        self.projection = Linear(num_channels * patch_size**2, d_model, axes=(None, "model"), rngs=rngs)
        self.class_vector = nnx.Param(normal(rngs.params(), (d_model,), deviation=d_model**-0.5), axes=("model",))
        self.positions = LearnedPositions(1 + num_patches, d_model, rngs=rngs)
        self.dropout = dropout
        self.dtype = jnp.dtype(dtype)

    def __call__(
        self,
        images: Float[Array, "B h w C"],
        *,
        valid: Bool[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns the vectors of images, with S = 1 + the number of patches.

        Args:
          positions: rows of the table of positions; 0, 1, 2, ... by default.

        Raises:
          ValueError: the images have another size.
        """
        del valid
        expected = (*self.image_size, self.num_channels)
        if images.shape[1:] != expected:
            raise ValueError(f"images must be [B, height, width, channels] = [B, {expected}], got {images.shape}")
        x = self.projection(patches(images, self.patch_size).astype(self.dtype))
        first = jnp.broadcast_to(self.class_vector[...].astype(self.dtype), (x.shape[0], 1, x.shape[2]))
        x = jnp.concatenate([first, x], 1)
        rows = jnp.arange(x.shape[1])[None] if positions is None else positions
        x = x + self.positions(rows, x.shape[1]).astype(self.dtype)
        return functional.dropout(constrain(x, "batch", "length", "model"), rate=self.dropout, key=key)


def patches(images: Float[Array, "B h w C"], size: int) -> Float[Array, "B P F"]:
    """Returns the square patches of images, row by row, each flattened channel by channel: F = C size^2.

    >>> patches(jnp.arange(8.0).reshape(1, 2, 4, 1), 2)[0].tolist()
    [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]
    """
    batch, height, width, channels = images.shape
    grid = images.reshape(batch, height // size, size, width // size, size, channels)
    return grid.transpose(0, 1, 3, 5, 2, 4).reshape(batch, -1, channels * size**2)
