"""Attention side by side: this library's implementations, jax.nn, Flax and PyTorch.

Each side runs in its own process, and the sides take turns. Milliseconds are medians, compared with a floor: the two
matrix products of attention (four more with the gradient) over the pairs that the mask allows, at the speed of the
fastest large float32 product of any side in this run.

    python -m benchmarks.attention --torch-python PATH                       # 128 to 16,384, causal
    python -m benchmarks.attention --shapes 2x2048x8x64 --backward --mask padding
    python -m benchmarks.attention --dtype bfloat16 --sides chosen cudnn blockwise    # on a GPU
    python -m benchmarks.attention --sides blockwise "torch SDPA" "eight heads" transposed    # ideas for a CPU
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

import numpy as np

from benchmarks import command
from benchmarks.sides.arrays import valid
from benchmarks.worker import Side
from experiments.command import count
from jaxformer.errors import JaxformerError

IDEAS = ("one head", "eight heads", "transposed", "diagonal apart", "products alone")
"""Other ways to compute causal attention on a CPU, which the library does not use."""
SIDES = {
    "blockwise": "benchmarks.sides.attention",
    "reference": "benchmarks.sides.attention",
    "chosen": "benchmarks.sides.attention",
    "cudnn": "benchmarks.sides.attention",
    "jax.nn": "benchmarks.sides.attention",
    "flax.nnx": "benchmarks.sides.attention",
    "torch SDPA": "benchmarks.sides.attention_torch",
    **dict.fromkeys(IDEAS, "benchmarks.sides.attention"),
}
DENSE = {"reference", "jax.nn", "flax.nnx"}
"""The sides that hold T x S arrays."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("attention", __doc__)
    default = ["2x128x8x64", "2x512x8x64", "2x2048x8x64", "2x4096x8x64", "1x8192x8x64", "1x16384x8x64"]
    command.add_shapes(parser, "BxTxNxH", default)
    parser.add_argument("--mask", choices=("causal", "padding"), default="causal")
    parser.add_argument("--backward", action="store_true", help="measure forward and gradient")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="default: all sides that run on a CPU")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--memory", type=float, default=16, help="GB that the sides with T x S arrays may use together")
    parser.add_argument("--large-pages", action="store_true", help="use large memory pages, as `jaxformer train` does")
    command.add_torch(parser)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    if args.mask != "causal" and set(IDEAS) & set(args.sides or ()):
        raise JaxformerError(f"{', '.join(IDEAS)} know only --mask causal")
    names = args.sides or ["blockwise", "reference", "jax.nn", "flax.nnx", "torch SDPA"]
    if "torch SDPA" in names and not command.find_torch(args.torch_python):
        names.remove("torch SDPA")
    about = {"mask": args.mask, "pass": "forward and gradient" if args.backward else "forward", "dtype": args.dtype}
    results = {}
    for shape in args.shapes:
        results["x".join(map(str, shape))] = measure(shape, names, args)
        command.write(args.out, about | {"shapes": results})


def measure(shape: tuple[int, ...], names: list[str], args: argparse.Namespace) -> dict:
    """Measures every side at one shape in turn and prints the results."""
    batch, length, heads, dim = shape
    pairs = batch * length * (length + 1) / 2 if args.mask == "causal" else length * valid(shape).sum()
    work = 2 * 2 * pairs * heads * dim * (3 if args.backward else 1)
    needed = batch * heads * length**2 * 4 * (5 if args.backward else 3) / 1e9
    print(f"\n{'x'.join(map(str, shape))}, {args.mask}, {args.dtype}, {work / 1e9:,.1f} GFLOP")
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for name in names:
            if name in DENSE and needed * len(DENSE & set(names)) > args.memory:
                print(f"{name}: not run, it would need about {needed:.0f} GB")
                continue
            spec = {"side": name, "shape": shape, "mask": args.mask, "backward": args.backward, "dtype": args.dtype}
            spec["save"] = str(pathlib.Path(folder) / f"{name}.npz")
            python = args.torch_python if "torch" in name else sys.executable
            running.append(Side(name, SIDES[name], spec, python=python, large_pages=args.large_pages))
        estimate = min(5.0, work / 1e11)  # seconds of one call
        rows = command.take_turns(running, args.rounds, max(1, min(20, int(0.5 / estimate))))
        if not rows:
            return rows
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
    command.script(main)
