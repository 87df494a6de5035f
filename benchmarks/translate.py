"""Compares the translation of a corpus by a trained run with CTranslate2, from text to text, in one run.

Sentences have their own lengths and end where the model ends them. Each side runs in its own process; they take turns.
The table has sentences per second of the fastest time, its ratio to CTranslate2 in float32, the same ratio of processor
time, the only meaningful one on a machine with other work (with ``--threads 1``), and the share of equal translations.

    python -m benchmarks.translate runs/en-de --source data/multi30k/test_2016.en
    python -m benchmarks.translate runs/en-de --source test.en --threads 1 --out benchmarks/results/translate.json
"""

from __future__ import annotations

import argparse
import os
import pathlib

from benchmarks import command
from benchmarks.decode import processor
from benchmarks.worker import Side
from experiments.command import count

SIDES = {
    "jaxformer": ("benchmarks.sides.corpus_ours", "float32"),
    "CTranslate2": ("benchmarks.sides.corpus_ctranslate2", "float32"),
    "CTranslate2 int8": ("benchmarks.sides.corpus_ctranslate2", "int8"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("translate", __doc__)
    parser.add_argument("run", type=pathlib.Path, help="a run of translation, pre- or post-norm with sinusoids")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="sentences, one a line")
    parser.add_argument("--beams", nargs="+", type=count, default=[1, 4])
    parser.add_argument("--batch", type=count, default=64, help="sentences searched together (default 64)")
    parser.add_argument("--rounds", type=count, default=3)
    command.add_threads(parser)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    number = len(args.source.read_text(encoding="utf-8").splitlines())
    header = {
        "processor": processor(),
        "threads": args.threads,
    }
    print(f"{header['processor']}, {args.threads} threads, load {os.getloadavg()[0]:.1f}, {number:,} sentences")
    cases = []
    for beam_size in args.beams:
        spec = {"run": str(args.run.resolve()), "source": str(args.source.resolve()), "batch_size": args.batch}
        cases.append(measure(spec | {"beam_size": beam_size, "threads": args.threads}, number, args.rounds))
        command.write(args.out, header | {"sentences": number, "cases": cases})


def measure(spec: dict, number: int, rounds: int) -> dict:
    """Measures every side in turn and prints a line; returns seconds, rates and shares of equal translations."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: spec["threads"]])  # the processes inherit it, and XLA counts its threads by it
    running = [Side(name, module, spec | {"compute_type": kind}) for name, (module, kind) in SIDES.items()]
    os.sched_setaffinity(0, cores)
    found = command.take_turns(running, rounds, 1)
    results: dict = {"beam": spec["beam_size"], "batch": spec["batch_size"]}
    base, line = found["CTranslate2"], f"beam {spec['beam_size']} batch {spec['batch_size']}"
    said = {name: row.pop("result") for name, row in found.items()}
    for name, row in found.items():
        equal = sum(a == b for a, b in zip(said[name], said["CTranslate2"], strict=True)) / number
        results[name] = row | {
            "sentences_per_second": number / row["fastest"],
            "ratio": base["fastest"] / row["fastest"],
            "ratio_of_processor_time": base["processor"] / row["processor"],
            "equal": equal,
        }
        rates = f"{results[name]['sentences_per_second']:6.1f} {results[name]['ratio']:5.2f}"
        line += f" | {name} {rates} {results[name]['ratio_of_processor_time']:5.2f} {equal:4.0%}"
    print(line, flush=True)
    return results


if __name__ == "__main__":
    command.script(main)
