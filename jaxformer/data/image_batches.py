"""Batches of images: decoded once, then cropped, shifted and flipped as a pure function of seed, epoch and image."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
from collections.abc import Iterator
from typing import Generic

import jax
import numpy as np

from jaxformer.config import at_least
from jaxformer.data.batch import ArrayT, BatchShape, Rows
from jaxformer.data.batch_plan import BatchPlan, Planned
from jaxformer.data.images import LabeledImages, Resize, pixels
from jaxformer.data.pipeline import batches
from jaxformer.data.token_cache import cached_sequences
from jaxformer.errors import ConfigError
from jaxformer.hardware import num_cores
from jaxformer.reprs import brief

CHUNK = 64
"""The number of images that a thread decodes per task."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ImageBatch(Generic[ArrayT]):
    """B images with their class indices."""

    images: ArrayT  # uint8 [B, h, w, C]
    labels: ArrayT  # int32 [B]
    valid: ArrayT  # Bool [B]; rows without an image fill up the batch

    __repr__ = brief


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random augmentation of training images."""

    shift: int = 0
    """The maximum shift in pixels, vertically and horizontally; uncovered pixels are black."""
    flip: bool = False
    """Flips half of the images horizontally."""
    crop: float = 1.0
    """The minimum side of a random crop, as a fraction of the image's side; crops are scaled to full size. 1 for no
    crop."""

    def __post_init__(self) -> None:
        at_least(0, self, "shift")
        if not 0 < self.crop <= 1:
            raise ConfigError(f"crop must be more than 0 and at most 1, got {self.crop}")

    def __call__(self, images: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Returns augmented images, uint8 ``[B, h, w, C]``, given six uniform draws in [0, 1) for each, ``[B, 6]``.

        An image is cropped (the first number sets the side, the next two the row and column), then flipped (the
        fourth), then shifted (rows by the fifth, columns by the last). Crops are interpolated linearly.
        """
        height, width = images.shape[1:3]
        side = self.crop + (1 - self.crop) * draws[:, :1]
        rows, columns = (
            np.clip((np.arange(n) + 0.5) * side - 0.5 + draw * (1 - side) * n, 0, n - 1)
            for n, draw in ((height, draws[:, 1:2]), (width, draws[:, 2:3]))
        )
        if self.flip:
            columns = np.where(draws[:, 3:4] < 0.5, columns[:, ::-1], columns)
        moves = np.floor(draws[:, 4:6] * (2 * self.shift + 1)).astype(int) - self.shift
        rows, columns = (_moved(x, move) for x, move in ((rows, moves[:, :1]), (columns, moves[:, 1:])))
        changed = _along(_along(images, rows).swapaxes(1, 2), columns).swapaxes(1, 2)
        return changed if changed.dtype == np.uint8 else np.rint(changed).astype(np.uint8)


def _moved(positions: np.ndarray, move: np.ndarray) -> np.ndarray:
    """Returns the positions ``[B, n]`` that are read after a move, -1 where there is nothing."""
    index = np.arange(positions.shape[1]) - move
    inside = (index >= 0) & (index < positions.shape[1])
    return np.where(inside, np.take_along_axis(positions, np.clip(index, 0, positions.shape[1] - 1), 1), -1.0)


def _along(images: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Returns the values of images ``[B, n, ...]`` at positions ``[B, m]`` between 0 and n - 1; 0 at -1."""
    below = np.floor(positions).astype(int)
    fraction = (positions - below)[..., None, None].astype(np.float32)

    def at(index: np.ndarray) -> np.ndarray:
        taken = np.take_along_axis(images, np.clip(index, 0, images.shape[1] - 1)[..., None, None], 1)
        return np.where((positions >= 0)[..., None, None], taken, np.zeros((), images.dtype))

    first = at(below)
    return first * (1 - fraction) + at(below + 1) * fraction if fraction.any() else first


@functools.lru_cache(maxsize=2)  # two epochs
def draws(seed: int, epoch: int, number: int) -> np.ndarray:
    """Returns the draws of an epoch's examples, ``[number, 6]``; a row does not depend on the other examples."""
    return np.random.default_rng((seed, epoch, 3)).random((number, 6))


class PlannedExamples(Planned):
    """Decoded images, the plan of batches of examples with one image each, and random augmentation."""

    images: np.ndarray  # uint8 [N, h, w, C]
    augmentation: Augmentation | None

    def chosen(self, step: int, rows: Rows | None, owners: np.ndarray) -> tuple[BatchShape, np.ndarray, np.ndarray]:
        """Returns a batch's shape, its examples and their images, ``owners[example]``; black images fill it up."""
        shape, examples, epoch = self.plan.batch(step, rows=rows)
        taken = self.images[owners[examples]]
        if self.augmentation not in (None, Augmentation()):
            taken = self.augmentation(taken, draws(self.plan.seed, epoch, len(owners))[examples])
        images = np.zeros((shape[0], *taken.shape[1:]), np.uint8)
        images[: len(taken)] = taken
        return shape, examples, images


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedImages(PlannedExamples):
    """Decoded images with their classes, the plan of their batches, and random augmentation.

    Batch i is a pure function of the images, the seed of the plan and i.
    """

    images: np.ndarray  # uint8 [N, h, w, C]
    labels: np.ndarray  # int32 [N]
    plan: BatchPlan
    augmentation: Augmentation | None = None

    __repr__ = brief

    def batch(self, step: int, *, rows: Rows | None = None) -> ImageBatch[np.ndarray]:
        """Makes batch number `step`; `rows` selects the rows to make, by default all."""
        _, examples, images = self.chosen(step, rows, np.arange(len(self.images)))
        labels = np.zeros(len(images), np.int32)
        labels[: len(examples)] = self.labels[examples]
        return ImageBatch(images, labels, np.arange(len(images)) < len(examples))


def image_plan(number: int, batch_size: int, *, seed: int = 0, shuffle: bool = True) -> BatchPlan:
    """Plans batches of `batch_size` of a number of images; each epoch has its own order if `shuffle`."""
    return BatchPlan(((batch_size, 1, 1),), (np.arange(number),), np.zeros(0, np.int64), seed, shuffle)


def decode_all(
    images: LabeledImages, shape: tuple[int, int, int], cache: str | os.PathLike[str] | None, *, resize: Resize
) -> np.ndarray:
    """Decodes images in several threads, uint8 ``[N, *shape]``, or reads them from `cache`.

    Broken images are thus found before training, which reads a memory-mapped file; see `cached_sequences`.

    Args:
      shape: height, width and channels, 1 (gray) or 3 (RGB).

    Raises:
      DataError: an image is broken, or has another size, which `resize` refuses; the message has its path.
    """

    def make(_: str) -> Iterator[list[np.ndarray]]:
        with images.store.reading() as read:

            def chunk(number: int) -> list[np.ndarray]:
                decoded = []
                for i in range(number * CHUNK, min(len(images), (number + 1) * CHUNK)):
                    image = read(images.indices[i])
                    decoded.append(pixels(image, shape, resize=resize, place=images.place(i)).ravel())
                return decoded

            threads = min(16, num_cores())
            yield from batches(chunk, stop=-(-len(images) // CHUNK), read_ahead=2 * threads, num_threads=threads)

    size, version = "x".join(map(str, (*shape, *images.store.shape))), importlib.metadata.version("pillow")
    arrays = cached_sequences(
        cache,
        f"images-2-{images.fingerprint}-{size}-{resize}-{version}",  # 2 is the version of `decode`
        ["pixels"],
        make,
        num_sequences=len(images),
        vocab_size=256,
    )
    return arrays["pixels"].tokens.reshape(len(images), *shape)
