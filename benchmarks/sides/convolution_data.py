"""The inputs of every side, and the file for its outputs."""

from __future__ import annotations

import numpy as np


def arrays(shape):
    """Returns x ``[B, T, D]``, kernel ``[K, D, D]``, bias and an upstream gradient for (B, T, D, K, dilation)."""
    batch, length, dim, taps, _ = shape
    shapes = (batch, length, dim), (taps, dim, dim), (dim,), (batch, length, dim)
    x, kernel, bias, upstream = (np.random.default_rng(i).standard_normal(s, np.float32) for i, s in enumerate(shapes))
    return x, kernel / np.float32((taps * dim) ** 0.5), bias, upstream


def save(spec, outputs):
    """Saves the output and the gradients, in this library's layout, for comparison."""
    np.savez(spec["save"], *outputs)
