"""The weights and the sentences that every side decodes, in NumPy only."""

from __future__ import annotations

import numpy as np

PAD, BOS, EOS = 0, 1, 2


def sources(spec: dict) -> list[np.ndarray]:
    """Returns sentences of 15 to 30 random tokens, each with its end."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(15, 31, spec["batch_size"])
    return [np.append(rng.integers(4, spec["vocab_size"], length - 1), EOS).astype(np.int32) for length in lengths]


def positions(spec: dict, length: int = 128) -> np.ndarray:
    """Returns the sinusoids of the positions, ``[length, D]``."""
    dim = spec["d_model"]
    angles = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, dim, 2) / dim)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, dim).astype(np.float32)


def layer(tree: dict, index: int) -> dict:
    """Returns the parameters of one layer."""
    return {name: layer(x, index) if isinstance(x, dict) else x[index] for name, x in tree.items()}


def weights(spec: dict) -> dict:
    """Returns the random parameters of a post-norm Transformer with one table, as this library names them."""
    rng = np.random.default_rng(0)
    d_model, heads, d_ff, layers = (spec[name] for name in ("d_model", "num_heads", "d_ff", "num_layers"))
    dim = d_model // heads

    def kernel(*shape: int, fan_in: int) -> np.ndarray:
        return rng.standard_normal((layers, *shape), np.float32) * np.float32(fan_in**-0.5)

    def norm() -> dict:
        return {"scale": np.ones((layers, d_model), np.float32), "bias": np.zeros((layers, d_model), np.float32)}

    def output() -> dict:
        return {"kernel": kernel(heads, dim, d_model, fan_in=d_model)}

    def linear(num_in: int, num_out: int) -> dict:
        bias = np.zeros((layers, num_out), np.float32)
        return {"kernel": kernel(num_in, num_out, fan_in=num_in), "bias": bias}

    def blocks(cross: bool) -> dict:
        found = {
            "attention": {"kernel": kernel(d_model, heads, 3, dim, fan_in=d_model), "output": output()},
            "attention_norm": norm(),
            "feed_forward": {"up": linear(d_model, d_ff), "down": linear(d_ff, d_model)},
            "feed_forward_norm": norm(),
        }
        if cross:
            queries, memory = (kernel(d_model, heads, *rest, dim, fan_in=d_model) for rest in ((), (2,)))
            found |= {"cross": {"query": queries, "key_value": memory, "output": output()}, "cross_norm": norm()}
        return found

    table = rng.standard_normal((spec["vocab_size"], d_model), np.float32) * np.float32(d_model**-0.5)
    return {
        "encoder": {"stack": {"layers": blocks(False)}},
        "decoder": {"embeddings": {"tokens": {"table": table}}, "stack": {"layers": blocks(True)}},
    }
