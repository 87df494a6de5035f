"""Attention side by side: this library's implementations, jax.nn, Flax and PyTorch.

Each side in its own process, called in turn; milliseconds are medians, and are compared with the floor: the two matrix
products that attention consists of (six more with the gradient), of the pairs that the mask allows, at the speed of the
fastest large float32 product that any side was seen to do in this run.

    python -m benchmarks.attention --torch-python PATH                       # 128 to 16,384, causal
    python -m benchmarks.attention --shapes 2x2048x8x64 --backward --mask padding
    python -m benchmarks.attention --dtype bfloat16 --sides chosen cudnn blockwise    # on a GPU
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import sys
import tempfile

import numpy as np

from benchmarks.sides.attention_data import valid
from benchmarks.worker import Side

SIDES = {
    "blockwise": "benchmarks.sides.attention",
    "reference": "benchmarks.sides.attention",
    "chosen": "benchmarks.sides.attention",
    "cudnn": "benchmarks.sides.attention",
    "jax.nn": "benchmarks.sides.attention",
    "flax.nnx": "benchmarks.sides.attention",
    "torch SDPA": "benchmarks.sides.attention_torch",
}
DENSE = {"reference", "jax.nn", "flax.nnx"}
"""Those that hold T x S arrays."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ["2x128x8x64", "2x512x8x64", "2x2048x8x64", "2x4096x8x64", "1x8192x8x64", "1x16384x8x64"]
    parser.add_argument("--shapes", nargs="+", default=default, help="BxTxNxH")
    parser.add_argument("--mask", choices=("causal", "padding"), default="causal")
    parser.add_argument("--backward", action="store_true", help="forward and gradient")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="default: all that run on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=float, default=16, help="GB that T x S sides may need together")
    parser.add_argument("--large-pages", action="store_true", help="memory as `jaxformer train` has it")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch and NumPy")
    parser.add_argument("--out", type=pathlib.Path, help="where to write the figures as JSON")
    known = parser.parse_args()
    names = known.sides or ["blockwise", "reference", "jax.nn", "flax.nnx", "torch SDPA"]
    if known.torch_python == sys.executable and importlib.util.find_spec("torch") is None and "torch SDPA" in names:
        print("torch SDPA: not here (pip install torch, or name an interpreter that has it by --torch-python)")
        names.remove("torch SDPA")
    found = {}
    for text in known.shapes:
        found[text] = measure(tuple(map(int, text.split("x"))), names, known)
    if known.out:
        about = {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "machine": platform.platform()}
        about |= {"command": "python -m benchmarks.attention " + " ".join(sys.argv[1:]), "mask": known.mask}
        about |= {"pass": "forward and gradient" if known.backward else "forward", "dtype": known.dtype}
        known.out.parent.mkdir(parents=True, exist_ok=True)
        known.out.write_text(json.dumps(about | {"shapes": found}, indent=1) + "\n")


def measure(shape: tuple[int, ...], names: list[str], known: argparse.Namespace) -> dict:
    """Every side of one shape, measured in turn and printed."""
    batch, length, heads, dim = shape
    pairs = batch * length * (length + 1) / 2 if known.mask == "causal" else length * valid(shape).sum()
    work = 2 * 2 * pairs * heads * dim * (4 if known.backward else 1)
    needed = batch * heads * length**2 * 4 * (5 if known.backward else 3) / 1e9
    print(f"\n{'x'.join(map(str, shape))}, {known.mask}, {known.dtype}, {work / 1e9:,.1f} GFLOP")
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for name in names:
            if name in DENSE and needed * len(DENSE & set(names)) > known.memory:
                print(f"{name}: not run, it would need some {needed:.0f} GB")
                continue
            spec = {"side": name, "shape": shape, "mask": known.mask, "backward": known.backward, "dtype": known.dtype}
            spec["save"] = str(pathlib.Path(folder) / f"{name}.npz")
            python = known.torch_python if "torch" in name else sys.executable
            running.append(Side(name, SIDES[name], spec, python=python, large_pages=known.large_pages))
        once = min(5.0, work / 1e11)  # seconds, about
        for _ in range(known.rounds):
            for side in running:
                side.round(max(1, min(20, int(0.5 / once))))
        rows = {side.name: side.close() for side in running}
        samples = {name: np.load(pathlib.Path(folder) / f"{name}.npz") for name in rows}
        first = samples[next(iter(rows))]
        for name, sample in samples.items():
            rows[name]["difference"] = float(max(np.abs(sample[x] - first[x]).max() for x in first.files))
    floor = work / max(row["peak"] for row in rows.values())
    print(f"{'':14s}{'ms':>9s}{'of floor':>10s}{'difference':>12s}{'compile s':>11s}{'memory GB':>11s}")
    for name, row in rows.items():
        row["of_floor"] = row["seconds"] / floor
        print(
            f"{name:14s}{row['seconds'] * 1e3:9.2f}{row['of_floor']:10.2f}{row['difference']:12.1e}"
            f"{row['first']:11.1f}{row['memory'] / 1e9:11.2f}   {row['versions']}",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
