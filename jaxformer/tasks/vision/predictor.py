"""A trained image classifier: classes with their probabilities, and the parts of the image that it attends to."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import models
from jaxformer.inspection.attention_maps import AttentionWeights, Patches, places, rollout
from jaxformer.inspection.pages import View
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import brief, brief_with_methods
from jaxformer.tasks import views
from jaxformer.tasks.batched import batched, in_order
from jaxformer.tasks.classes import Classes
from jaxformer.tasks.images import ImagePredictor, normalized, with_rows

ROWS = 64
"""The largest number of images per batch."""
MOST_WEIGHTS = 1 << 28
"""The largest number of attention weights that a batch for maps may hold: 1 GB, and two batches exist at a time. A
large grid has fewer images."""

VisionModel = models.VisionTransformer | models.ResidualNetwork
VisionModelConfig = models.VisionTransformerConfig | models.ResidualNetworkConfig


@dataclasses.dataclass(frozen=True)
class ClassifiedImage:
    """An image's class, the probability of each class, the image as the network reads it, and attention maps."""

    label: str
    probabilities: Mapping[str, float]
    image: np.ndarray
    """The pixels, uint8 ``[h, w, C]``."""
    attention_maps: Mapping[str, np.ndarray]
    """Attention weights of the positions of a grid, ``[rows, columns]``, by the kind of map; empty without attention.

    For a vision Transformer, "last layer" is the mean of the heads of the last layer and "rollout" the product of all
    layers (Abnar and Zuidema 2020), from the class token or the mean of the patches. For a convolutional network,
    "grid" is the mean attention that each position gets.
    """

    __repr__ = brief


@dataclasses.dataclass(frozen=True)
class ImageClassifier(ImagePredictor):
    """A classifier, its parameters and its classes."""

    net: Pure[VisionModel, VisionModelConfig]
    params: Params
    vocabulary: Classes
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are."""

    __repr__ = brief_with_methods

    def probabilities(self, images: np.ndarray, *, progress: Callable[[int], None] = lambda number: None) -> np.ndarray:
        """Returns the probability of each class, ``[images, classes]``, for images uint8 ``[N, h, w, C]``.

        Args:
          progress: called with the number of images since the last call.

        Raises:
          ValueError: the images have another size or dtype.
        """
        self._check(images)
        result = np.zeros((len(images), len(self.vocabulary.names)))
        for index, probabilities in self._results(_probabilities, images, ROWS, progress):
            result[index] = probabilities
        return result

    def classify(self, paths: Sequence[str | os.PathLike[str]]) -> list[ClassifiedImage]:
        """Returns the class of the image in each file, with probabilities and attention maps.

        Raises:
          DataError: a file is missing or holds no image.
          TypeError: `paths` is one path and not a sequence of paths.
        """
        return self.classify_pixels(self.read_all(paths))

    def classify_pixels(self, images: np.ndarray) -> list[ClassifiedImage]:
        """Returns the result of `classify` for images uint8 ``[N, h, w, C]``.

        Raises:
          ValueError: the images have another size or dtype.
        """
        self._check(images)
        results, found = [], in_order(self._results(_captured, images, self._rows_with_maps))
        for image, (probabilities, weights) in zip(images, found, strict=True):
            named = dict(zip(self.vocabulary.names, probabilities.tolist(), strict=True))
            maps = {} if weights is None else self._maps(weights)
            results.append(ClassifiedImage(max(named, key=lambda name: named[name]), named, image, maps))
        return results

    def view(self, path: str | os.PathLike[str]) -> View:
        """Returns the attention of the image in a file, and the probability of each class.

        Raises:
          ConfigError: the network has no attention.
          DataError: the file is missing or holds no image.
        """
        image, config = self.read(path), self.net.config
        patches = Patches(image, self._grid)
        names = places(patches)
        if getattr(config, "has_class_vector", False):
            names = ("class token", *names)
        found: dict[str, AttentionWeights] = {}
        if not isinstance(config, models.ResidualNetworkConfig) or config.attention is not None:
            weights = views.all_weights(self.net, self.params, np.asarray(normalized(jnp.asarray(image[None]))))
            found = {name: AttentionWeights(names, names, x, patches) for name, x in weights.items()}
        classes = dict(zip(self.vocabulary.names, self.probabilities(image[None])[0].tolist(), strict=True))
        return View(os.fspath(path), found, views.by_probability(classes))

    def _results(
        self,
        program: Callable[..., object],
        images: np.ndarray,
        most: int,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yields the index of each image, and its results.

        A batch has `most` images, or the power of two that holds all, so that few programs are compiled. Black images
        fill the last one.
        """
        rows = min(most, 1 << (len(images) - 1).bit_length())
        run = lambda batch: functools.partial(program, self.net, self.params, with_rows(images[batch], rows))
        return batched(run, [1] * len(images), rows, progress=progress)

    def with_image_size(self, image_size: tuple[int, int]) -> ImageClassifier:
        """Returns the classifier for images of another size; see `models.with_image_size`.

        Raises:
          ValueError: the size does not fit the patches.
        """
        config, params = self.net.config, self.params
        if isinstance(config, models.VisionTransformerConfig):
            config, params = models.with_image_size(config, params, image_size)
        else:
            config = dataclasses.replace(config, image_size=image_size)
        return dataclasses.replace(self, net=dataclasses.replace(self.net, config=config), params=params)

    @property
    def _grid(self) -> tuple[int, int]:
        """The height and width of the grid that the network attends to."""
        config = self.net.config
        height, width = config.image_size
        if isinstance(config, models.ResidualNetworkConfig):
            side = 2 ** (config.attention.stage - 1) if config.attention else 1
        else:
            side = config.patch_size
        return -(-height // side), -(-width // side)

    @property
    def _rows_with_maps(self) -> int:
        """The number of images in a batch for maps."""
        config = self.net.config
        if isinstance(config, models.ResidualNetworkConfig):
            tokens, matrices = math.prod(self._grid), 2 * (config.attention is not None)
        else:  # of each layer, those of all heads and their mean
            tokens = math.prod(self._grid) + config.has_class_vector
            matrices = config.num_layers * (config.num_heads + 1)
        return min(ROWS, max(1, MOST_WEIGHTS // max(1, matrices * tokens**2)))

    def _maps(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the maps of an image from its weights ``[L, 1, T, T]``."""
        config, grid = self.net.config, self._grid
        if isinstance(config, models.ResidualNetworkConfig):
            return {"grid": weights.mean((0, 1, 2)).reshape(grid)}
        first = int(config.has_class_vector)
        given = lambda rows: (rows[0] if first else rows.mean(0))[first:].reshape(grid)
        return {"last layer": given(weights[-1].mean(0)), "rollout": given(rollout(weights))}


@functools.partial(jax.jit, static_argnums=0)
def _probabilities(net: Pure, params: Params, images: jax.Array) -> jax.Array:
    return jax.nn.softmax(net.apply(params, normalized(images)))


@functools.partial(jax.jit, static_argnums=0)
def _captured(net: Pure, params: Params, images: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Returns probabilities ``[B, K]`` and the heads' mean weights ``[B, L, 1, T, T]``, None without attention."""
    model = net.bind(params)
    if isinstance(net.config, models.ResidualNetworkConfig):
        logits, intermediates = model.run(normalized(images))
        weights = intermediates["self"].weights()[:, None] if intermediates else None
        return jax.nn.softmax(logits), weights
    logits, intermediates = model.run(normalized(images), capture=("encoder.self",))
    if not intermediates:
        return jax.nn.softmax(logits), None
    layers = [
        intermediates["encoder.self"].layer(i).weights().mean(1, keepdims=True) for i in range(net.config.num_layers)
    ]
    return jax.nn.softmax(logits), jnp.stack(layers, 1)
