"""Compares the speed of two revisions of the library, interleaved: training, decoding, attention and start-up.

Each revision is a checkout of its own, which runs its own `benchmarks.sides` in its own process. The two take turns, in
alternating order, and each turn gives one ratio of times, this checkout's by the other's. Turns continue until the 95 %
interval of their geometric mean is narrow, or a bound of turns is reached. The same ratio of processor time tells apart
what other work on the machine did. A start-up is a new process up to the end of its first compiled step, and has no
warm caches.

    git worktree add ../old v1.2
    python -m benchmarks.revisions ../old
    python -m benchmarks.revisions ../old --cases train decode --most 60 --out benchmarks/results/revisions.json
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics

from benchmarks import command
from benchmarks.worker import Side
from experiments.command import count

TRAIN = {"d_model": 256, "num_heads": 4, "d_ff": 1024, "num_layers": 3, "vocab_size": 8000, "batch_size": 16}
TRAIN |= {"source": 32, "target": 32, "dropout": 0.1}
SMALL = {
    "d_model": 256,
    "num_heads": 4,
    "d_ff": 1024,
    "num_layers": 3,
    "vocab_size": 8000,
    "batch_size": 8,
    "length": 32,
}
ATTENTION = {"shape": (2, 512, 8, 64), "mask": "causal", "backward": True, "dtype": "float32", "save": ""}
CASES = {
    "train": ("benchmarks.sides.ours", TRAIN, 6),
    "decode": ("benchmarks.sides.decode_ours", SMALL | {"beam_size": 4, "compute_type": "float32", "threads": 0}, 6),
    "attention": ("benchmarks.sides.attention", ATTENTION | {"side": "reference"}, 16),
    "blockwise": ("benchmarks.sides.attention", ATTENTION | {"side": "blockwise"}, 16),
}
"""The side module of each case, its spec, and the steps of a turn."""

FEWEST, WIDTH = 7, 0.06
"""The fewest turns, and the width of the interval that ends them."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("revisions", __doc__)
    parser.add_argument("old", type=pathlib.Path, help="a checkout of the other revision")
    parser.add_argument("--cases", nargs="+", choices=[*CASES, "startup"], default=[*CASES, "startup"])
    parser.add_argument("--most", type=count, default=40, help="the most turns of a case; by default 40")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    here = pathlib.Path(__file__).resolve().parent.parent
    roots = {"old": args.old.resolve(), "new": here}
    cases = {}
    for case in args.cases:
        measure = startup if case == "startup" else turns
        cases[case] = measure(case, roots, args.most)
        show(f"{case}: new / old", cases[case])
        command.write(args.out, {"cases": cases})


def show(what: str, found: dict) -> None:
    """Prints a ratio with its interval."""
    text = "{ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}"
    used = found.get("of_processor_time")
    print(f"{what} {text.format(**found)}, {found['turns']} turns", flush=True)
    print(f"  of processor time {text.format(**used)}" if used else "", end="\n" if used else "", flush=True)


def turns(case: str, roots: dict[str, pathlib.Path], most: int) -> dict:
    """Returns the ratio of a case whose processes live through all turns, and each side's median and peak memory."""
    module, spec, steps = CASES[case]
    return compare({name: Side(f"{case} {name}", module, spec, root=root) for name, root in roots.items()}, steps, most)


def compare(sides: dict[str, Side], steps: int, most: int) -> dict:
    """Returns the ratio of the times of the side "new" by those of "old", and each side's median and peak memory.

    Args:
      steps: the steps of a turn.
      most: the most turns.
    """
    ratios: list[float] = []
    of_processor: list[float] = []
    for _ in command.turns(sides.values(), most, steps):
        for found, times in ((ratios, "seconds"), (of_processor, "processor")):
            medians = {name: statistics.median(getattr(side, times)[-steps:]) for name, side in sides.items()}
            found.append(medians["new"] / medians["old"])
        if is_narrow(ratios):
            break
    closed = {name: side.close() for name, side in sides.items()}
    kept = {name: {key: row[key] for key in ("seconds", "memory", "first")} for name, row in closed.items()}
    return interval(ratios) | {"of_processor_time": interval(of_processor)} | kept


def startup(case: str, roots: dict[str, pathlib.Path], most: int) -> dict:
    """Returns the ratio of seconds from the start of a process to the end of its first step."""
    module, spec, _ = CASES["train"]
    ratios: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in roots}
    for turn in command.rounds(most):
        for name in sorted(roots, reverse=turn % 2 == 1):
            side = Side(f"{case} {name}", module, spec, root=roots[name])
            seconds[name].append(side.ready["import"] + side.ready["first"])
            side.round(1)
            side.close()
        ratios.append(seconds["new"][-1] / seconds["old"][-1])
        if is_narrow(ratios):
            break
    return interval(ratios) | {name: {"seconds": statistics.median(own)} for name, own in seconds.items()}


def interval(ratios: list[float]) -> dict:
    """Returns the geometric mean of ratios with its 95 % interval, by Student's t of their logarithms.

    >>> found = interval([0.98, 1.0, 1.02] * 3)
    >>> found["turns"], round(found["ratio"], 3), round(found["low"], 3), round(found["high"], 3)
    (9, 1.0, 0.987, 1.013)
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean, half = statistics.fmean(logs), _quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - half), math.exp(mean + half)
    return {"ratio": math.exp(mean), "low": low, "high": high, "turns": len(ratios), "ratios": ratios}


def is_narrow(ratios: list[float]) -> bool:
    """Returns True if there are enough turns, and the interval of their ratios is narrow."""
    if len(ratios) < FEWEST:
        return False
    found = interval(ratios)
    return found["high"] - found["low"] < WIDTH


def _quantile(freedom: int) -> float:
    """Returns the 97.5 % quantile of Student's t by its expansion in the normal's, within 0.004 from 6 degrees on."""
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


if __name__ == "__main__":
    command.script(main)
