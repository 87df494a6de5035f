"""Images side by side with PyTorch: a training step of a vision Transformer, convolutions, and the supply of batches.

Each side runs in its own process, and the sides take turns. PyTorch has the same weights and images; the losses of the
first steps and the results of the convolutions are compared. Its convolutions run in both of its layouts, and the
faster one counts. A ratio is that of the least processor times, to which other work on the machine adds little; on one
core (``taskset -c 1``) they are those of the calls. The ratio of the fastest calls by the clock stands beside it.

    taskset -c 1 python -m benchmarks.vision --torch-python PATH --out benchmarks/results/vision-DATE.json
    python -m benchmarks.vision --torch-python PATH --parts convolution --shapes 128x32x32x32x3x1 --rounds 15
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import tempfile
from typing import Any

import numpy as np

from benchmarks import command
from benchmarks.worker import Side
from experiments.command import count
from jaxformer.errors import ConfigError
from jaxformer.hardware import processor_name

OURS, TORCH = "benchmarks.sides.vision", "benchmarks.sides.vision_torch"
SIZES: dict[str, Any] = {
    "batch": 128,
    "image_size": 32,
    "num_channels": 3,
    "num_classes": 10,
    "patch_size": 4,
    "d_model": 128,
    "num_heads": 4,
    "d_ff": 256,
    "num_layers": 4,
}
"""The preset vision:tiny."""
AUGMENTATIONS = {"flips and shifts": (2, 1.0), "crops, flips and shifts": (2, 0.7)}
SHAPES = ("128x32x3x32x3x1", "128x32x32x32x3x1", "128x32x32x64x3x2", "128x16x64x64x3x1", "128x8x128x128x3x1")
SHAPES += ("128x32x32x64x1x2", "128x32x3x128x4x4", "16x64x64x64x3x1")
RATIOS = {"ratio": "processor", "clock_ratio": "fastest"}
PARTS = ("step", "batches", "convolution")


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("vision", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    command.add_shapes(parser, "BxHEIGHTxINxOUTxKxSTRIDE", SHAPES)
    parser.add_argument("--rounds", type=count, default=15)
    command.add_torch(parser)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    print(f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    if args.parts != ["batches"] and not command.find_torch(args.torch_python):
        raise ConfigError("this compares with PyTorch: --torch-python must name an interpreter that has it")
    results: dict[str, Any] = {}
    if "step" in args.parts:
        results["steps"] = steps(args)
        command.write(args.out, results)
    if "batches" in args.parts:
        results["batches"] = supply(args)
        command.write(args.out, results)
    if "convolution" in args.parts:
        results["convolutions"] = []
        for shape, what in itertools.product(args.shapes, ("forward", "gradient")):
            results["convolutions"].append(convolution(shape, what, args))
            command.write(args.out, results)


def steps(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures training steps with and without dropout; without it the losses are those of PyTorch."""
    rows = []
    for rate in (0.0, 0.1):
        spec = SIZES | {"work": "step", "dropout": rate}
        row = {"dropout": rate, **measure(spec, {"torch": {}}, 1, args, same=rate == 0)}
        row["images_per_second"] = SIZES["batch"] / row["sides"]["ours"]["processor"]
        show(f"training step, dropout {rate}", row)
        rows.append(row)
    return rows


def supply(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures the batches beside a training step, which runs in turns with them."""
    rows = []
    for name, (shift, crop) in AUGMENTATIONS.items():
        spec = SIZES | {"work": "batches", "images": 10_000, "number": 20, "shift": shift, "crop": crop}
        loader = Side("batches", OURS, spec)
        step = Side("step", OURS, SIZES | {"work": "step", "dropout": 0.1})
        for _ in command.rounds(args.rounds):
            loader.round(2)
            step.round(1)
        supplied = SIZES["batch"] * spec["number"] / loader.close()["processor"]
        consumed = SIZES["batch"] / step.close()["processor"]
        row = {"augmentation": name, "images_per_second": supplied, "trained_per_second": consumed}
        rows.append(row | {"ratio": supplied / consumed})
        print(f"{name:34s}{supplied:10,.0f} images/s, training {consumed:7,.0f}, {supplied / consumed:5.1f} times")
    return rows


def convolution(shape: tuple[int, ...], what: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measures a convolution, or one with its gradients."""
    text = "x".join(map(str, shape))
    batch, height, num_in, num_out, taps, stride = shape
    work = 2 * batch * (height // stride) ** 2 * taps**2 * num_in * num_out * (3 if what == "gradient" else 1)
    spec = {"work": "convolution", "shape": shape, "backward": what == "gradient"}
    peers = {"torch": {"channels_last": False}, "torch channels last": {"channels_last": True}}
    row = {"shape": text, "pass": what, **measure(spec, peers, max(1, min(10, int(2e10 / work))), args, same=True)}
    show(f"{text} {what}", row)
    return row


def measure(
    spec: dict[str, Any], peers: dict[str, dict[str, Any]], calls: int, args: argparse.Namespace, *, same: bool
) -> dict[str, Any]:
    """Measures all sides in turn; returns their results, our time by the faster peer's, and the largest difference."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(pathlib.Path(folder) / f"{name}.npz") for name in ("ours", *peers)}
        running = [Side("ours", OURS, spec | {"save": files["ours"]})]
        for name, changes in peers.items():
            running.append(Side(name, TORCH, spec | changes | {"save": files[name]}, python=args.torch_python))
        sides = command.take_turns(running, args.rounds, calls)
        found = {name: np.load(file) for name, file in files.items()}
        apart = [
            float(np.abs(found["ours"][x] - found[name][x]).max() / np.abs(found[name][x]).max())
            for name in peers
            for x in found[name].files
        ]
    best = min(peers, key=lambda name: sides[name]["processor"])
    ratios = {name: sides["ours"][key] / sides[best][key] for name, key in RATIOS.items()}
    return {"sides": sides, "peer": best, **ratios} | ({"difference": max(apart)} if same else {})


def show(title: str, row: dict[str, Any]) -> None:
    """Prints a row."""
    ours, theirs = (row["sides"][name]["processor"] * 1e3 for name in ("ours", row["peer"]))
    apart = f"{row['difference']:10.1e}" if "difference" in row else ""
    print(
        f"{title:34s}{ours:10.2f} ms{theirs:10.2f} ms{row['ratio']:7.2f} ({row['clock_ratio']:.2f}){apart}", flush=True
    )


if __name__ == "__main__":
    command.script(main)
