"""Compares the layers that process a sequence: their costs by length, and their recall by distance.

python -m experiments.sequence_layers --out results                    # both parts; resumes
python -m experiments.sequence_layers --part costs --out DIR
python -m experiments.sequence_layers --smoke --out DIR    # all of it, tiny: at most half a minute
"""

from __future__ import annotations

import argparse
import dataclasses
import functools

from rich.console import Console

from experiments import command
from experiments.sequence_layers import costs, drawing, recall
from experiments.sequence_layers.record import Record, bar
from jaxformer.files import write_text

DISTANCES = 16, 64, 256, 1024
SMOKE = recall.Budget(parameters=3_000, rows=4, steps=4, rates=(1e-3,), chunk=2, examined=8)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("sequence_layers", __doc__, out="folder of records, tables and pictures")
    parser.add_argument("--part", choices=("costs", "recall", "all"), default="all")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Runs the parts; the same command resumes where it was stopped."""
    console = Console(soft_wrap=True)
    if args.part in ("costs", "all"):
        run_costs(args, console)
    if args.part in ("recall", "all"):
        run_recall(args, console)


def run_costs(args: argparse.Namespace, console: Console) -> None:
    """Measures each kind of layer at each length and draws the result."""
    lengths, seconds = ((64,), 0.0) if args.smoke else (costs.LENGTHS, 1.0)
    settings = {"d_model": costs.D_MODEL, "window": costs.WINDOW, "lengths": lengths, "seconds": seconds}
    record = Record(args.out / "costs.json", settings)
    with bar(console) as progress:
        task = progress.add_task("costs", total=len(lengths) * len(costs.MAKES))
        for length in lengths:
            for kind in costs.MAKES:
                row = record(f"{kind} {length}", lambda: costs.measure(kind, length, seconds=seconds))  # noqa: B023
                times = " and ".join(
                    f"{row[f'{name}_seconds']['cpu'] * 1e3:.1f} ms" for name in ("forward", "gradient")
                )
                console.print(f"{kind} {length}: {row['flops']:.3g} FLOP, path {row['path']}, {times}", highlight=False)
                progress.advance(task)
            rows = list(record.data["cases"].values())
            write_text(args.out / "costs.md", drawing.costs_table(rows))
            drawing.draw_costs(rows, args.out / "costs.png")
    console.print(f"wrote {args.out / 'costs.png'}", highlight=False)


def run_recall(args: argparse.Namespace, console: Console) -> None:
    """Trains each kind of network on each task at each distance and draws the accuracies."""
    budget, distances = (SMOKE, (16,)) if args.smoke else (recall.Budget(), DISTANCES)
    settings = {"budget": dataclasses.asdict(budget), "distances": distances, "window": recall.WINDOW}
    record = Record(args.out / "recall.json", settings | {"blocks": recall.BLOCKS})
    steps = len(budget.rates) * budget.steps
    with bar(console) as progress:
        task = progress.add_task("recall", total=len(distances) * len(recall.BLOCKS) * len(recall.TASKS) * steps)
        done = 0
        for number, distance in enumerate(distances, 1):
            for kind in recall.BLOCKS:
                compiled = functools.cache(
                    functools.partial(recall.programs, kind, budget)
                )  # for both tasks, if at all
                for name in recall.TASKS:
                    tick = functools.partial(progress.advance, task)
                    learn = lambda: recall.learn(name, kind, distance, budget, tick, compiled())  # noqa: B023
                    row = record(f"{name} {kind} {distance}", learn)
                    done += steps
                    progress.update(task, completed=done)
                    line = f"{name}, {kind}, distance {distance}: {row['accuracy']:.1%}, D = {row['d_model']}"
                    console.print(line, highlight=False)
            drawing.draw_recall(record.data["cases"], distances[:number], args.out / "recall.png")
            write_text(args.out / "recall.md", drawing.recall_table(record.data["cases"], distances[:number]))
    console.print(f"wrote {args.out / 'recall.png'}", highlight=False)


if __name__ == "__main__":
    command.script(main)
