"""What every side attends with, and where it leaves what it found."""

from __future__ import annotations

import numpy as np


def arrays(shape):
    """Query, key, value and an upstream gradient, ``[B, T, N, H]``."""
    return [np.random.default_rng(i).standard_normal(shape, np.float32) for i in range(4)]


def valid(shape):
    """Which keys are real, ``[B, T]``: a quarter of the first row, all of the last, evenly between."""
    batch, length = shape[:2]
    return np.arange(length)[None] < np.linspace(length // 4, length, batch).astype(int)[:, None]


def save(spec, found):
    """A sample of the output and of the gradients, to be compared."""
    if spec["save"]:
        np.savez(spec["save"], *(x[:, :: max(1, x.shape[1] // 512)] for x in found))
