"""The inputs of every side, and the file for its outputs."""

from __future__ import annotations

import numpy as np


def arrays(shape):
    """Returns query, key, value and an upstream gradient, ``[B, T, N, H]``."""
    return [np.random.default_rng(i).standard_normal(shape, np.float32) for i in range(4)]


def valid(shape):
    """Returns the real keys, ``[B, T]``: a quarter in the first row, all in the last, evenly spaced between."""
    batch, length = shape[:2]
    return np.arange(length)[None] < np.linspace(length // 4, length, batch).astype(int)[:, None]


def save(spec, outputs):
    """Saves a sample of the output and the gradients for comparison."""
    if spec["save"]:
        np.savez(spec["save"], *(x[:, :: max(1, x.shape[1] // 512)] for x in outputs))
