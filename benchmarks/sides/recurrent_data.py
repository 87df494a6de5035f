"""The inputs and weights of every side, in PyTorch's layout, and the file for its outputs."""

from __future__ import annotations

import numpy as np

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def arrays(spec):
    """Returns x ``[B, T, D]``, an upstream gradient ``[B, T, H]``, and the four weights of one layer."""
    batch, length, size, hidden = spec["shape"]
    draw, rows = np.random.default_rng(0), GATES[spec["cell"]] * hidden
    shapes = (batch, length, size), (batch, length, hidden), (rows, size), (rows, hidden), (rows,), (rows,)
    x, upstream, *weights = (draw.standard_normal(shape, np.float32) for shape in shapes)
    return x, upstream, [weight / np.float32(hidden**0.5) for weight in weights]


def save(spec, outputs):
    """Saves the outputs and the gradients of x and the weights, in PyTorch's layout, for comparison."""
    np.savez(spec["save"], *outputs)
