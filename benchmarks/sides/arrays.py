"""The inputs of every side, in NumPy only, and the file for its outputs."""

from __future__ import annotations

import numpy as np

PAD = 0
GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def batch(spec: dict) -> dict[str, np.ndarray]:
    """Returns random tokens with the lengths of a bucket: at most a fifth of a row is padding, a tenth on average."""
    rng = np.random.default_rng(0)
    result = {}
    for name, length in (("source", spec["source"]), ("target", spec["target"] + 1)):
        tokens = rng.integers(4, spec["vocab_size"], (spec["batch_size"], length), dtype=np.int32)
        lengths = rng.integers(int(length * 0.8), length + 1, spec["batch_size"])
        result[name] = np.where(np.arange(length) < lengths[:, None], tokens, PAD)
    return result


def target_tokens(spec: dict) -> int:
    """Returns the number of real target tokens in the batch, without padding."""
    return int((batch(spec)["target"][:, 1:] != PAD).sum())


def attention_arrays(shape):
    """Returns query, key, value and an upstream gradient, ``[B, T, N, H]``."""
    return [np.random.default_rng(i).standard_normal(shape, np.float32) for i in range(4)]


def valid(shape):
    """Returns the real keys, ``[B, T]``: a quarter in the first row, all in the last, evenly spaced between."""
    batch, length = shape[:2]
    return np.arange(length)[None] < np.linspace(length // 4, length, batch).astype(int)[:, None]


def convolution_arrays(shape):
    """Returns x ``[B, T, D]``, kernel ``[K, D, D]``, bias and an upstream gradient for (B, T, D, K, dilation)."""
    batch, length, dim, taps, _ = shape
    shapes = (batch, length, dim), (taps, dim, dim), (dim,), (batch, length, dim)
    x, kernel, bias, upstream = (np.random.default_rng(i).standard_normal(s, np.float32) for i, s in enumerate(shapes))
    return x, kernel / np.float32((taps * dim) ** 0.5), bias, upstream


def recurrent_arrays(spec):
    """Returns x ``[B, T, D]``, an upstream gradient ``[B, T, H]``, and the four weights of one layer."""
    batch, length, size, hidden = spec["shape"]
    draw, rows = np.random.default_rng(0), GATES[spec["cell"]] * hidden
    shapes = (batch, length, size), (batch, length, hidden), (rows, size), (rows, hidden), (rows,), (rows,)
    x, upstream, *weights = (draw.standard_normal(shape, np.float32) for shape in shapes)
    return x, upstream, [weight / np.float32(hidden**0.5) for weight in weights]


def image_convolution_arrays(shape):
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
    """Saves outputs and gradients for comparison, in the layout of the inputs, if the spec names a file."""
    if spec.get("save"):
        np.savez(spec["save"], *outputs)
