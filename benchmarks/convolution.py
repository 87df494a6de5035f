"""Convolution along a sequence side by side: this library, the same as shifted matrix products, and PyTorch.

Each side runs in its own process, and the sides take turns. All compute the same numbers from the same inputs, PyTorch
in its own layout ``[B, D, T]``. The ratio to PyTorch is the median over rounds of the ratio of neighbors in time.

    python -m benchmarks.convolution --torch-python PATH                        # forward
    python -m benchmarks.convolution --torch-python PATH --backward --causal --shapes 8x1024x256x3x1
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile

import numpy as np

from benchmarks import command
from benchmarks.worker import Side
from experiments.command import count

SIDES = {
    "jaxformer": "benchmarks.sides.convolution",
    "products": "benchmarks.sides.convolution",
    "torch conv1d": "benchmarks.sides.convolution_torch",
}
TORCH = "torch conv1d"
SHAPES = ("64x32x512x3x1", "32x128x256x3x1", "8x1024x256x3x1", "8x1024x256x3x81", "2x8192x128x3x1", "1x16384x64x7x1")


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("convolution", __doc__)
    command.add_shapes(parser, "BxTxDxKxDILATION", SHAPES)
    parser.add_argument("--causal", action="store_true", help="see the past only; default: both sides")
    parser.add_argument("--backward", action="store_true", help="measure forward and gradient")
    parser.add_argument("--rounds", type=count, default=7)
    command.add_torch(parser)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    names = list(SIDES)
    if not command.find_torch(args.torch_python):
        names.remove(TORCH)
    about = {"causal": args.causal, "pass": "forward and gradient" if args.backward else "forward"}
    results = {}
    for shape in args.shapes:
        results["x".join(map(str, shape))] = measure(shape, names, args)
        command.write(args.out, about | {"shapes": results})


def measure(shape: tuple[int, ...], names: list[str], args: argparse.Namespace) -> dict:
    """Measures every side at one shape in turn and prints the results."""
    batch, length, dim, taps, _ = shape
    work = 2 * batch * length * taps * dim**2 * (3 if args.backward else 1)
    print(f"\n{'x'.join(map(str, shape))}, {work / 1e9:,.1f} GFLOP", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for name in names:
            spec = {"side": name, "shape": shape, "causal": args.causal, "backward": args.backward}
            spec["save"] = str(pathlib.Path(folder) / f"{name}.npz")
            python = args.torch_python if name == TORCH else sys.executable
            running.append(Side(name, SIDES[name], spec, python=python))
        steps = max(1, min(20, int(0.3 / (work / 1e11))))
        medians: dict[str, list[float]] = {name: [] for name in names}
        for _ in command.turns(running, args.rounds, steps):
            for side in running:
                medians[side.name].append(statistics.median(side.seconds[-steps:]))
        rows = {side.name: side.close() for side in running}
        samples = {name: np.load(pathlib.Path(folder) / f"{name}.npz") for name in rows}
        first = samples[names[0]]
        for name, sample in samples.items():
            apart = (np.abs(sample[x] - first[x]).max() / np.abs(first[x]).max() for x in first.files)
            rows[name]["difference"] = float(max(apart))
    print(f"{'':14s}{'ms':>9s}{'fastest':>9s}{'of PyTorch':>12s}{'difference':>12s}{'memory GB':>11s}")
    for name, row in rows.items():
        if TORCH in medians:
            ratios = [a / b for a, b in zip(medians[name], medians[TORCH], strict=True)]
            row["of_pytorch"] = [float(x) for x in np.quantile(ratios, (0.25, 0.5, 0.75))]
        ratio = f"{row['of_pytorch'][1]:12.2f}" if TORCH in medians else f"{'':12s}"
        print(
            f"{name:14s}{row['seconds'] * 1e3:9.2f}{row['fastest'] * 1e3:9.2f}{ratio}{row['difference']:12.1e}"
            f"{row['memory'] / 1e9:11.2f}   {row['versions']}",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    command.script(main)
