"""The truth of captions about their pictures, and the attention of their words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from experiments.captioning.boxes import Box
from experiments.captioning.statements import NUMBERS, truth
from jaxformer.inspection.attention_maps import AttentionMap, entropy

CLASSES = {
    "colors": "blue black yellow color colors colored",
    "shapes": "block blocks square squares circle circles triangle triangles item items object objects",
    "containers": "tower towers box boxes",
    "numbers": " ".join(NUMBERS),
    "places": "top base bottom middle edge corner wall side touching above below over under stacked",
}
FUNCTION = "function words"


@dataclasses.dataclass(frozen=True)
class Grounding:
    """The shares of true captions; a caption without a parse is not true."""

    own: float
    """The share of captions that are true of the picture that they describe."""
    shuffled: float
    """The mean share of other pictures that a caption is true of."""
    parsed: float
    """The share of captions that the grammar parses."""

    @property
    def difference(self) -> float:
        """The share of true captions that is due to the picture."""
        return self.own - self.shuffled


def grounding(captions: Sequence[str], pictures: Sequence[Sequence[Box]]) -> Grounding:
    """Computes how often captions are true of their own pictures, and of all others.

    Raises:
      ValueError: there are fewer than two pictures, or another number of captions.
    """
    if len(captions) != len(pictures) or len(pictures) < 2:
        raise ValueError(f"there must be two or more pictures, each with a caption, got {len(pictures)}")
    known = {caption: truths(caption, pictures) for caption in set(captions)}
    table = np.array([known[caption] for caption in captions])
    own = np.diag(table)
    others = (table.sum(1) - own) / (len(pictures) - 1)
    parsed = np.mean([truth(caption) is not None for caption in captions])
    return Grounding(float(own.mean()), float(others.mean()), float(parsed))


def truths(caption: str, pictures: Sequence[Sequence[Box]]) -> np.ndarray:
    """Returns for each picture True if a caption is true of it; False for all without a parse."""
    true = truth(caption)
    return np.array([true is not None and bool(true(boxes)) for boxes in pictures])


def best_constant(captions: Sequence[str], pictures: Sequence[Sequence[Box]]) -> str:
    """Returns the caption that is true of the most pictures; the first of equals in order of the alphabet."""
    return max(sorted(set(captions)), key=lambda caption: truths(caption, pictures).sum())


def nearest(images: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns the number of the known image with the least squared difference of pixels to each image."""
    flat, others = (x.reshape(len(x), -1).astype(np.float32) / 255 for x in (images, known))
    # Of (a - b) ** 2, the square of a is the same for all known images.
    return (np.einsum("nd,nd->n", others, others)[None] - 2 * flat @ others.T).argmin(1)


def word_class(word: str) -> str:
    """Returns the class of a word."""
    return next((name for name, words in CLASSES.items() if word.lower() in words.split()), FUNCTION)


def entropies(maps: Sequence[AttentionMap]) -> dict[str, tuple[float, int]]:
    """Returns the mean entropy of the attention of each class of words, as a share of the largest; and their number."""
    found: dict[str, list[float]] = {}
    for one in maps:
        for word, value in zip(one.target[:-1], entropy(one.weights) / np.log(one.weights.shape[1]), strict=False):
            found.setdefault(word_class(word), []).append(float(value))
    return {name: (float(np.mean(values)), len(values)) for name, values in sorted(found.items())}


def movement(maps: Sequence[AttentionMap], grid: tuple[int, int]) -> float:
    """Returns the mean distance between the centers of attention of two words, as a share of the picture's width.

    It is 0 where no caption has two words.
    """
    rows, columns = np.unravel_index(np.arange(grid[0] * grid[1]), grid)
    places = np.stack([rows, columns], 1) / grid[1]
    steps = [np.linalg.norm(np.diff(one.weights[:-1] @ places, axis=0), axis=1) for one in maps]
    ways = np.concatenate(steps)
    return float(ways.mean()) if len(ways) else 0.0
