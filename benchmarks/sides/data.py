"""The batch that every side trains on, in NumPy only."""

from __future__ import annotations

import numpy as np

PAD = 0


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
