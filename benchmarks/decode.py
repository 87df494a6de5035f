"""Compares greedy and beam search with Hugging Face's `generate` and CTranslate2, with the same random weights.

A sentence of 15 to 30 tokens gets 32, because no side may choose the end. Each side runs in its own process; they take
turns, many short times. The table has sentences per second of the fastest time, encoding included, the ratio to
CTranslate2 in float32, and the same ratio of processor time. On a machine with other work only the latter is
meaningful, and only with ``--threads 1``. The fraction of equal outputs shows whether the sides compute the same.

    python -m benchmarks.decode                                           # the base model with 8k, all batches
    python -m benchmarks.decode --sizes base-8k base-32k --out benchmarks/results/decode.json
    python -m benchmarks.decode --python "Hugging Face=/path/to/venv/bin/python" --batches 64 --beams 4 --threads 1
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import sys

from benchmarks import command
from benchmarks.worker import Side
from experiments.command import count

SIZES = {
    f"base-{name}": {"d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6, "vocab_size": size, "length": 32}
    for name, size in (("8k", 8000), ("32k", 32000))
}
SIDES = {
    "jaxformer": ("benchmarks.sides.decode_ours", "float32"),
    "CTranslate2": ("benchmarks.sides.decode_ctranslate2", "float32"),
    "CTranslate2 int8": ("benchmarks.sides.decode_ctranslate2", "int8"),
    "Hugging Face": ("benchmarks.sides.decode_huggingface", "float32"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("decode", __doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base-8k"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--batches", nargs="+", type=count, default=[1, 8, 64])
    parser.add_argument("--beams", nargs="+", type=count, default=[1, 4])
    parser.add_argument("--rounds", type=count, default=6)
    command.add_threads(parser)
    about = "interpreters that have a side"
    parser.add_argument("--python", type=interpreter, nargs="+", default=[], metavar="SIDE=PATH", help=about)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    header = {
        "processor": processor(),
        "threads": args.threads,
    }
    print(f"{header['processor']}, {args.threads} threads, load {os.getloadavg()[0]:.1f}")
    cases = []
    for size in args.sizes:
        for beam_size in args.beams:
            for batch_size in args.batches:
                spec = SIZES[size] | {"batch_size": batch_size, "beam_size": beam_size, "threads": args.threads}
                cases.append({"size": size, "beam": beam_size, "batch": batch_size} | measure(size, spec, args))
                command.write(args.out, header | {"cases": cases})


def measure(size: str, spec: dict, args: argparse.Namespace) -> dict:
    """Measures every side in turn and prints a line; returns seconds, rates and shares of equal sentences."""
    interpreters = dict(args.python)
    steps = max(1, 16 // spec["batch_size"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: args.threads])  # the processes inherit it, and XLA counts its threads by it
    running = []
    for name in args.sides:
        module, compute_type = SIDES[name]
        python = interpreters.get(name) or interpreters.get(name.removesuffix(" int8"), sys.executable)
        running.append(Side(name, module, spec | {"compute_type": compute_type}, python=python))
    os.sched_setaffinity(0, cores)
    found = command.take_turns(running, args.rounds, steps)
    results, line = {}, f"{size:9s} beam {spec['beam_size']} batch {spec['batch_size']:2d}"
    base = found.get("CTranslate2", next(iter(found.values())))
    for name, row in found.items():
        equal = sum(a == b for a, b in zip(row["result"], base["result"], strict=True)) / spec["batch_size"]
        rate, ratio = spec["batch_size"] / row["fastest"], base["fastest"] / row["fastest"]
        kept = {key: row[key] for key in ("seconds", "fastest", "processor", "first", "peak", "memory", "versions")}
        results[name] = kept | {"sentences_per_second": rate, "ratio": ratio, "equal": equal}
        results[name]["ratio_of_medians"] = base["seconds"] / row["seconds"]
        results[name]["ratio_of_processor_time"] = used = base["processor"] / row["processor"]
        line += f" | {name} {rate:6.1f} {ratio:5.2f} {used:5.2f} {equal:4.0%}"
    print(line, flush=True)
    return results


def interpreter(text: str) -> tuple[str, str]:
    """Reads a side and the path of the interpreter that has it."""
    side, _, path = text.partition("=")
    if side not in SIDES or not path:
        raise argparse.ArgumentTypeError(f"it must be SIDE=PATH with a side of {', '.join(SIDES)}, got {text}")
    return side, path


def processor() -> str:
    """Returns the name of the processor and its vector units."""
    info = pathlib.Path("/proc/cpuinfo").read_text() if pathlib.Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    by_name = {name.strip(): value.strip() for name, value in fields.items()}
    flags = by_name.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2") if name in flags), "")
    model = [by_name.get(name, "") for name in ("model name", "cpu family", "model")]
    return f"{model[0] or platform.processor()} (family {model[1]}, model {model[2]}) {vectors}".strip()


if __name__ == "__main__":
    command.script(main)
