"""The inputs and weights of every side, in this library's layout, and the file for its outputs."""

from __future__ import annotations

import numpy as np


def convolution_arrays(shape):
    """Returns x ``[B, h, h, C]``, a kernel ``[K, K, C, D]`` and an upstream gradient for (B, h, C, D, K, stride)."""
    batch, height, num_in, num_out, taps, stride = shape
    grid = -(-height // stride)
    shapes = (batch, height, height, num_in), (taps, taps, num_in, num_out), (batch, grid, grid, num_out)
    x, kernel, upstream = (np.random.default_rng(i).standard_normal(s, np.float32) for i, s in enumerate(shapes))
    return x, kernel / np.float32((taps * taps * num_in) ** 0.5), upstream


def images(spec):
    """Returns pixels uint8 ``[B, h, w, C]`` and labels int32 ``[B]``."""
    draw, size = np.random.default_rng(0), spec["image_size"]
    pixels = draw.integers(0, 256, (spec["batch"], size, size, spec["num_channels"]), np.uint8)
    return pixels, draw.integers(0, spec["num_classes"], spec["batch"]).astype(np.int32)


def weights(shapes):
    """Returns arrays of these shapes by name: small noise, and around 1 for the scales of norms."""
    draw = np.random.default_rng(0)
    return {
        name: np.float32(name.endswith("scale")) + draw.standard_normal(shape, np.float32) * np.float32(0.05)
        for name, shape in sorted(shapes.items())
    }


def save(spec, outputs):
    """Saves outputs for comparison, if the spec names a file."""
    if "save" in spec:
        np.savez(spec["save"], *outputs)
