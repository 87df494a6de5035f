"""Compares a whole encoder-decoder training step: this library, PyTorch's `nn.Transformer` and plain Flax Linen.

All sides have the same shapes, padding, dropout (residuals, attention weights, hidden units), label smoothing and Adam.
Each side runs in its own process at its best setting, and the sides take turns. The peak is a float32 matrix product
that each process times beside its steps.

    python -m benchmarks.train_step                                     # D=256, 4+4 layers, vocabulary 8k
    python -m benchmarks.train_step --sizes base-8k base-32k --rounds 3
    python -m benchmarks.train_step --sizes multi30k --sides jaxformer R-Drop SimCut    # what two passes cost
    python -m benchmarks.train_step --torch-python /path/to/venv/bin/python --out benchmarks/results/train_step.json
"""

from __future__ import annotations

import argparse
import sys

import jax

from benchmarks import command
from benchmarks.sides.arrays import target_tokens
from benchmarks.sides.ours import shape
from benchmarks.worker import Side
from experiments.command import count
from jaxformer import models, pure
from jaxformer.planning import flops

SIZES = {
    "small-8k": {"d_model": 256, "num_heads": 4, "d_ff": 1024, "num_layers": 4, "vocab_size": 8000, "batch_size": 64},
    "base-8k": {"d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6, "vocab_size": 8000, "batch_size": 64},
    "base-32k": {"d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6, "vocab_size": 32000, "batch_size": 64},
    "multi30k": {"d_model": 128, "num_heads": 4, "d_ff": 256, "num_layers": 4, "vocab_size": 6000, "batch_size": 144},
}
SIDES = {
    "jaxformer": ("benchmarks.sides.ours", {}),
    "R-Drop": ("benchmarks.sides.ours", {"loss": "r_drop"}),
    "SimCut": ("benchmarks.sides.ours", {"loss": "simcut"}),
    "Flax Linen": ("benchmarks.sides.linen", {}),
    "PyTorch eager": ("benchmarks.sides.pytorch", {}),
    "PyTorch compiled": ("benchmarks.sides.pytorch", {"compiled": True}),
}
LIBRARIES = [name for name, (_, options) in SIDES.items() if "loss" not in options]


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("train_step", __doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small-8k"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[*LIBRARIES])
    parser.add_argument("--length", type=count, default=32, help="length of source and target")
    parser.add_argument("--batch-size", type=count, help="sentences in the batch")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--steps", type=count, default=3, help="steps per round")
    command.add_torch(parser)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    sides = args.sides
    if any("PyTorch" in name for name in sides) and not command.find_torch(args.torch_python):
        sides = [name for name in sides if "PyTorch" not in name]
    results = {}
    for size in args.sizes:
        spec = SIZES[size] | {"source": args.length, "target": args.length, "dropout": args.dropout}
        spec["batch_size"] = args.batch_size or spec["batch_size"]
        results[size] = measure(size, spec, sides, args)
        command.write(args.out, {"sizes": results})


def measure(size: str, spec: dict, names: list[str], args: argparse.Namespace) -> dict:
    """Measures every side at one size in turn and prints the results."""
    tokens = target_tokens(spec)
    net = pure(models.EncoderDecoder, shape(spec), attention=flops.attention)
    batch = [jax.ShapeDtypeStruct((spec["batch_size"], spec[side]), "int32") for side in ("source", "target")]
    work = 3 * flops.flops(flops.forward(net.apply, net.shapes, *batch))
    print(f"\n{size}: {spec}, {tokens:,} real target tokens, {work / 1e9:,.0f} GFLOP a step")
    running = []
    for name in names:
        module, options = SIDES[name]
        python = args.torch_python if "PyTorch" in name else sys.executable
        running.append(Side(name, module, spec | options, python=python))
    results = command.take_turns(running, args.rounds, args.steps)
    print(
        f"{'':18s}{'ms/step':>9s}{'CPU ms':>8s}{'tokens/s':>10s}{'of peak':>9s}{'first step s':>14s}{'memory GB':>11s}"
    )
    for name, row in results.items():
        row["tokens_per_second"] = tokens / row["seconds"]
        row["share_of_peak"] = work / row["seconds"] / row["peak"]
        print(
            f"{name:18s}{row['seconds'] * 1e3:9.0f}{row['processor'] * 1e3:8.0f}"
            f"{row['tokens_per_second']:10,.0f}{row['share_of_peak']:9.0%}"
            f"{row['first']:14.1f}{row['memory'] / 1e9:11.2f}   {row['versions']}",
            flush=True,
        )
    return results


if __name__ == "__main__":
    command.script(main)
