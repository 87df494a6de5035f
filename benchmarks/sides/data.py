"""The batch that every side trains on: NumPy only."""

from __future__ import annotations

import numpy as np

PAD = 0


def batch(spec: dict) -> dict[str, np.ndarray]:
    """Random tokens with lengths spread as in a bucket: the last fifth of a row is padding, on average a tenth."""
    rng = np.random.default_rng(0)
    found = {}
    for name, length in (("source", spec["source"]), ("target", spec["target"] + 1)):
        rows = rng.integers(4, spec["vocab"], (spec["rows"], length), dtype=np.int32)
        lengths = rng.integers(int(length * 0.8), length + 1, spec["rows"])
        found[name] = np.where(np.arange(length) < lengths[:, None], rows, PAD)
    return found


def target_tokens(spec: dict) -> int:
    """Real target tokens of the batch: padding does not count."""
    return int((batch(spec)["target"][:, 1:] != PAD).sum())
