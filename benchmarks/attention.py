"""Attention side by side: this library's implementations, jax.nn, Flax and, where it is installed, PyTorch.

One run, the sides in turn, the median of several rounds; each time also as a multiple of the floor, which is the
time of the two matrix products that attention consists of, measured in the same run on the same shapes.

    python benchmarks/attention.py                                  # lengths 128 to 4096, causal
    python benchmarks/attention.py --shapes 2x2048x8x64 --backward
    python benchmarks/attention.py --lengths 512 1024 --mask padding --out benchmarks/results/attention.json
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer import functional, masks


def jax_sides(kind: str, valid: jax.Array, backward: bool):
    """Functions of (query, key, value), by name."""
    mask = masks.causal() if kind == "causal" else masks.padding(valid)

    def dense(query):
        return mask.dense(query.shape[1], query.shape[1])

    sides = {
        "jaxformer blockwise": lambda q, k, v: functional.attention(q, k, v, mask=mask, implementation="blockwise"),
        "jaxformer reference": lambda q, k, v: functional.attention(q, k, v, mask=mask, implementation="reference"),
        "jax.nn": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, mask=dense(q)),
        "flax.nnx": lambda q, k, v: nnx.dot_product_attention(q, k, v, mask=dense(q)),
    }
    if backward:
        whole = lambda f: jax.grad(lambda q, k, v: f(q, k, v).sum(), (0, 1, 2))
        sides = {name: whole(f) for name, f in sides.items()}
    return {name: jax.jit(f) for name, f in sides.items()}


def floor(query: jax.Array, backward: bool) -> tuple[float, str]:
    """Seconds of attention's two matrix products (and their four gradients), causal or not, with nothing between."""
    batch, length, heads, dim = query.shape
    moved = query.transpose(0, 2, 1, 3).reshape(batch * heads, length, dim)
    one = min(4, batch * heads)
    products = jax.jit(lambda x: jnp.einsum("bts,bsd->btd", jnp.einsum("btd,bsd->bts", x, x), x))
    part = moved[:one]
    products(part).block_until_ready()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        products(part).block_until_ready()
        times.append(time.perf_counter() - began)
    return min(times) * batch * heads / one * (3 if backward else 1), "two dense products a head"


def torch_side(kind: str, valid: np.ndarray, arrays: list[np.ndarray], backward: bool):
    """PyTorch's scaled_dot_product_attention, or None where there is no PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    query, key, value = (torch.tensor(x.transpose(0, 2, 1, 3), requires_grad=backward) for x in arrays)
    mask = None if kind == "causal" else torch.tensor(valid)[:, None, None, :]

    def run():
        with torch.set_grad_enabled(backward):
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=kind == "causal"
            )
            if backward:
                out.sum().backward()
        return out.detach().numpy().transpose(0, 2, 1, 3)

    return run


def measure(shape: tuple[int, ...], kind: str, *, backward: bool, rounds: int) -> list[dict[str, object]]:
    """A row for each side: milliseconds, ratio to the floor, temporary memory, largest difference from the first."""
    batch, length, _, _ = shape
    arrays = [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(3)]
    valid = np.arange(length)[None] < np.linspace(length // 2, length, batch).astype(int)[:, None]
    on_device = [jnp.asarray(x) for x in arrays]
    calls, memory = {}, {}
    for name, side in jax_sides(kind, jnp.asarray(valid), backward).items():
        compiled = side.lower(*on_device).compile()
        memory[name] = compiled.memory_analysis().temp_size_in_bytes
        calls[name] = lambda compiled=compiled: jax.block_until_ready(compiled(*on_device))
    if (torch := torch_side(kind, valid, arrays, backward)) is not None:
        calls["torch SDPA"] = torch
    first = {name: call() for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    least, _ = floor(on_device[0], backward)
    expected = first["jaxformer reference"]
    rows = []
    for name, taken in times.items():
        got = first[name]
        comparable = not (backward and name.startswith("torch"))
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True) if comparable else ()
        rows.append(
            {
                "shape": "x".join(map(str, shape)),
                "mask": kind,
                "pass": "forward and gradient" if backward else "forward",
                "side": name,
                "milliseconds": round(1e3 * statistics.median(taken), 2),
                "of floor": round(statistics.median(taken) / least, 2),
                "memory MiB": round(memory[name] / 2**20, 1) if name in memory else None,
                "largest difference": max(
                    (float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs), default=None
                ),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", help="BxTxNxH, for example 2x2048x8x64")
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512, 2048, 4096], help="T, at 2 x T x 8 x 64")
    parser.add_argument("--mask", choices=("causal", "padding"), default="causal")
    parser.add_argument("--backward", action="store_true", help="forward and gradient")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, help="write the rows as JSON")
    known = parser.parse_args()
    shapes = [tuple(map(int, s.split("x"))) for s in known.shapes or [f"2x{length}x8x64" for length in known.lengths]]
    found = []
    for shape in shapes:
        for row in measure(shape, known.mask, backward=known.backward, rounds=known.rounds):
            found.append(row)
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if known.out:
        about = {"jax": jax.__version__, "python": platform.python_version(), "device": jax.devices()[0].device_kind,
                 "date": time.strftime("%Y-%m-%d"), "rows": found}  # fmt: skip
        known.out.parent.mkdir(parents=True, exist_ok=True)
        known.out.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
