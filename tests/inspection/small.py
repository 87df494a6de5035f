"""Small attention maps."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Pieces:
    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: np.ndarray


def rows(seed, *shape):
    weights = np.random.default_rng(seed).random(shape)
    return weights / weights.sum(-1, keepdims=True)
