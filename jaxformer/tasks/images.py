"""The parts that image tasks share: checks of settings, pixels, and predictors that read image files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.caches import data_cache
from jaxformer.data.image_batches import decode_all
from jaxformer.data.images import LabeledImages, decode, pixels, read_file
from jaxformer.errors import plural
from jaxformer.reprs import as_html
from jaxformer.tasks.base import AnyNet


def image_shape(model: Any) -> tuple[int, int, int]:
    """Returns the height, width and channels of a model's images, from its configuration or its `image` part."""
    own = getattr(model, "image", model)
    return *own.image_size, own.num_channels


def decode_images(config: Any, images: LabeledImages) -> np.ndarray:
    """Returns the pixels of images as the model takes them, uint8 ``[N, h, w, C]``; see `decode_all`."""
    data = config.data
    return decode_all(images, image_shape(config.model), data_cache(data.cache), resize=data.resize)


def pixel_words(images: np.ndarray) -> str:
    """Returns the size of images ``[N, h, w, C]`` in words."""
    height, width, channels = images.shape[1:]
    return f"{height} x {width} pixels of {plural(channels, 'channel')}"


def normalized(images: jax.Array) -> jax.Array:
    """Scales pixels from [0, 255] to [-1, 1]."""
    return images.astype(jnp.float32) / 127.5 - 1


def with_rows(images: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns a batch of images with black ones after them, up to this number."""
    return np.pad(images, [(0, num_rows - len(images))] + [(0, 0)] * 3)


class ImagePredictor:
    """A predictor that reads images from files."""

    net: AnyNet

    _repr_html_ = as_html

    @property
    def shape(self) -> tuple[int, int, int]:
        """The height, width and channels of the images."""
        return image_shape(self.net.config)

    def read(self, path: str | os.PathLike[str]) -> np.ndarray:
        """Reads an image, uint8 ``[h, w, C]``; one of another size is scaled and center-cropped.

        Raises:
          DataError: the file is missing or holds no image.
        """
        place = os.fspath(path)
        return pixels(decode(read_file(path), place), self.shape, resize="fit", place=place)

    def read_all(self, paths: Sequence[str | os.PathLike[str]]) -> np.ndarray:
        """Reads images, uint8 ``[N, h, w, C]``, as `read` does; raises a TypeError if given a single path."""
        if isinstance(paths, str | os.PathLike):
            raise TypeError("paths must be a sequence of paths, got one path; write [path]")
        return np.stack([self.read(path) for path in paths]) if paths else np.zeros((0, *self.shape), np.uint8)

    def _check(self, images: np.ndarray) -> None:
        dtype = getattr(images, "dtype", type(images).__name__)
        if dtype != np.uint8:  # colors from 0 to 1 would be rounded down to black
            raise ValueError(f"images must be an array of uint8, colors from 0 to 255, got {dtype}")
        if images.ndim != 4 or images.shape[1:] != self.shape:
            raise ValueError(f"images must be [N, {', '.join(map(str, self.shape))}], got {list(images.shape)}")
