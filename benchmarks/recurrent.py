"""GRU and LSTM side by side: this library and PyTorch, forward, and forward with the gradient.

Each side runs in its own process, and the sides take turns. Both have the same input and weights, and their outputs and
gradients are compared. A ratio is the median of the ratios of all rounds, between their quartiles.

    python -m benchmarks.recurrent --torch-python PATH
    python -m benchmarks.recurrent --torch-python PATH --cells lstm --shapes 64x32x256x256 --rounds 15
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import tempfile

import numpy as np

from benchmarks import command
from benchmarks.sides.arrays import GATES
from benchmarks.worker import Side
from experiments.command import count
from jaxformer.errors import ConfigError
from jaxformer.hardware import processor_name

SIDES = {"ours": "benchmarks.sides.recurrent", "torch": "benchmarks.sides.recurrent_torch"}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("recurrent", __doc__)
    default = ["32x32x128x128", "64x32x256x256", "64x32x512x512", "16x256x256x256"]
    parser.add_argument("--cells", nargs="+", choices=GATES, default=["gru", "lstm"])
    command.add_shapes(parser, "BxTxDxH", default)
    parser.add_argument("--passes", nargs="+", choices=("forward", "gradient"), default=["forward", "gradient"])
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument("--steps", type=count, default=10, help="calls in a round")
    command.add_torch(parser)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    if not command.find_torch(args.torch_python):
        raise ConfigError("this compares with PyTorch: --torch-python must name an interpreter that has it")
    results = []
    print(f"{processor_name()}, {len(os.sched_getaffinity(0))} cores")
    print(f"{'':30s}{'ours ms':>9s}{'torch ms':>10s}{'ratio':>8s}{'quartiles':>16s}{'difference':>12s}")
    for shape in args.shapes:
        text = "x".join(map(str, shape))
        for cell in args.cells:
            for what in args.passes:
                spec = {"cell": cell, "shape": shape, "backward": what == "gradient"}
                row = {"shape": text, "cell": cell, "pass": what, **measure(spec, args)}
                results.append(row)
                (low, middle, high), (ours, theirs) = row["ratio"], (row[side]["seconds"] * 1e3 for side in SIDES)
                print(
                    f"{cell:5s}{text:16s}{what:9s}{ours:9.2f}{theirs:10.2f}"
                    f"{middle:8.2f}{f'{low:.2f} to {high:.2f}':>16s}{row['difference']:12.1e}",
                    flush=True,
                )
                command.write(args.out, {"results": results})


def measure(spec: dict, args: argparse.Namespace) -> dict:
    """Measures both sides in turn; returns their results, the quartiles of ratios, and the largest difference."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(pathlib.Path(folder) / f"{name}.npz") for name in SIDES}
        pythons = {"ours": sys.executable, "torch": args.torch_python}
        sides = {name: Side(name, SIDES[name], spec | {"save": files[name]}, python=pythons[name]) for name in SIDES}
        ratios = []
        for _ in command.turns(sides.values(), args.rounds, args.steps):
            ours, theirs = (statistics.median(side.seconds[-args.steps :]) for side in sides.values())
            ratios.append(ours / theirs)
        results = {name: side.close() for name, side in sides.items()}
        mine, theirs = (np.load(files[name]) for name in SIDES)
        scale = lambda x: max(1.0, float(np.abs(x).max()))
        difference = max(float(np.abs(mine[name] - theirs[name]).max()) / scale(theirs[name]) for name in theirs.files)
    return results | {"ratio": [float(x) for x in np.quantile(ratios, (0.25, 0.5, 0.75))], "difference": difference}


if __name__ == "__main__":
    command.script(main)
