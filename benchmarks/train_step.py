"""A whole training step of the encoder-decoder: this library, PyTorch's `nn.Transformer`, a plain Flax Linen one.

Same shapes, same padding, dropout on (residuals, attention weights, hidden units), label smoothing, Adam; every side
at its own best setting, in a process of its own, in turn.  The peak is a float32 matrix product timed in each process
beside its steps.

    python -m benchmarks.train_step                                     # D=256, 4+4 layers, vocabulary 8k
    python -m benchmarks.train_step --sizes base-8k base-32k --rounds 3
    python -m benchmarks.train_step --torch-python /path/to/venv/bin/python --out benchmarks/results/train_step.json
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

from benchmarks.sides.data import target_tokens
from benchmarks.worker import Side
from jaxformer.models import EncoderDecoderConfig
from jaxformer.models.costs import encoder_decoder_training_flops

SIZES = {
    "small-8k": {"width": 256, "heads": 4, "hidden": 1024, "depth": 4, "vocab": 8000, "rows": 64},
    "base-8k": {"width": 512, "heads": 8, "hidden": 2048, "depth": 6, "vocab": 8000, "rows": 64},
    "base-32k": {"width": 512, "heads": 8, "hidden": 2048, "depth": 6, "vocab": 32000, "rows": 64},
    "multi30k": {"width": 128, "heads": 4, "hidden": 256, "depth": 4, "vocab": 6000, "rows": 144},
}
SIDES = {
    "jaxformer": ("benchmarks.sides.ours", {}),
    "Flax Linen": ("benchmarks.sides.linen", {}),
    "PyTorch eager": ("benchmarks.sides.pytorch", {}),
    "PyTorch compiled": ("benchmarks.sides.pytorch", {"compiled": True}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small-8k"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--length", type=int, default=32, help="of both source and target")
    parser.add_argument("--rows", type=int, help="sentences in the batch")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="a round")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch and NumPy")
    parser.add_argument("--out", type=pathlib.Path, help="where to write the figures as JSON")
    known = parser.parse_args()
    sides = [name for name in known.sides if _installed(name, known.torch_python)]
    found = {}
    for size in known.sizes:
        spec = SIZES[size] | {"source": known.length, "target": known.length, "dropout": known.dropout}
        spec["rows"] = known.rows or spec["rows"]
        found[size] = measure(size, spec, sides, known)
    if known.out:
        about = {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "machine": platform.platform()}
        about["command"] = "python -m benchmarks.train_step " + " ".join(sys.argv[1:])
        known.out.parent.mkdir(parents=True, exist_ok=True)
        known.out.write_text(json.dumps(about | {"sizes": found}, indent=1) + "\n")


def _installed(name: str, torch_python: str) -> bool:
    if "PyTorch" in name and torch_python == sys.executable and importlib.util.find_spec("torch") is None:
        print(f"{name}: not here (pip install torch, or name an interpreter that has it by --torch-python)")
        return False
    return True


def measure(size: str, spec: dict, names: list[str], known: argparse.Namespace) -> dict:
    """Every side of one size, measured in turn and printed."""
    tokens = target_tokens(spec)
    config = EncoderDecoderConfig(
        spec["vocab"],
        spec["vocab"],
        d_model=spec["width"],
        num_heads=spec["heads"],
        d_ff=spec["hidden"],
        num_encoder_layers=spec["depth"],
        num_decoder_layers=spec["depth"],
    )
    work = encoder_decoder_training_flops(config, spec["rows"], spec["source"], spec["target"])
    print(f"\n{size}: {spec}, {tokens:,} real target tokens, {work / 1e9:,.0f} GFLOP a step")
    running = []
    for name in names:
        module, more = SIDES[name]
        python = known.torch_python if "PyTorch" in name else sys.executable
        running.append(Side(name, module, spec | more, python=python))
    for _ in range(known.rounds):
        for side in running:
            side.round(known.steps)
    found = {side.name: side.close() for side in running}
    print(f"{'':18s}{'ms/step':>9s}{'tokens/s':>10s}{'of peak':>9s}{'first step s':>14s}{'memory GB':>11s}")
    for name, row in found.items():
        row["tokens_per_second"] = tokens / row["seconds"]
        row["share_of_peak"] = work / row["seconds"] / row["peak"]
        print(
            f"{name:18s}{row['seconds'] * 1e3:9.0f}{row['tokens_per_second']:10,.0f}{row['share_of_peak']:9.0%}"
            f"{row['first']:14.1f}{row['memory'] / 1e9:11.2f}   {row['versions']}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main()
