"""Measures recurrent translation with and without attention beside the Transformer; the same command resumes.

    python -m experiments.recurrent_translation --data-dir data --out runs/recurrent
    python -m experiments.recurrent_translation --small --out runs/recurrent-small

--data-dir holds multi30k/ and tatoeba/ (`jaxformer data fetch`). A finished training is not repeated. --minutes ends
the call in time and --report only draws and prints what is there. With --small it has the built-in grammar and a
quarter of the parameters, and needs no data; neither does --smoke.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command
from experiments.recurrent_translation import joining, measures, training_cell
from experiments.recurrent_translation.grid import FULL, SMALL, SMOKE, Cell, Scale, cells, configuration, data_of
from experiments.recurrent_translation.report import report
from jaxformer.files import write_text


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "recurrent_translation",
        __doc__,
        out="folder of runs, records, pictures and results",
        data="multi30k/ and tatoeba/",
    )
    parser.add_argument("--seeds", type=command.count, default=1, help="trainings of each model on each corpus")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates to train each model with")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--small", action="store_true", help="the built-in grammar alone, a quarter of the parameters")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Runs the cells that have no record, then reports.

    Raises:
      ConfigError: there is no folder of corpora, or `--out` has records of other settings.
      Stopped: the time was up.
    """
    end = command.end_of_call(args.minutes)  # the corpora and the gradients count, too
    scale = SMOKE if args.smoke else SMALL if args.small else FULL
    out = args.out.resolve()
    if args.rates:
        scale = dataclasses.replace(scale, rates=tuple(args.rates))
    files, number, sizes = out / "joined", scale.test_pairs, {}
    directory = None
    if {"multi30k", "tatoeba"} & set(scale.steps):
        directory = command.data_directory(args.data_dir, "multi30k/ and tatoeba/").resolve()
    if "multi30k" in scale.steps:
        assert directory is not None
        sizes["multi30k"] = joining.write_multi30k(directory, files / "multi30k", number=number)
    sizes["grammar"] = joining.write_grammar(files / "grammar", train=scale.train_pairs, number=number)
    initial = _initial_gradients(out / "gradients.json", scale)
    todo = cells(scale, seeds=args.seeds)
    try:
        for number, cell in enumerate(todo, 1):
            if not args.report:
                _do(cell, f"{number} of {len(todo)}", out, directory, scale, end)
    finally:
        command.publish(out, report(_records(out, todo), out, sizes, initial, scale) + "\n")


def _do(cell: Cell, place: str, out: pathlib.Path, directory: pathlib.Path | None, scale: Scale, end: float) -> None:
    """Trains and measures a cell that has no record."""
    config = configuration(cell, scale, data=data_of(cell.corpus, directory=directory, files=out / "joined"))

    def make() -> Mapping[str, Any]:
        print(f"\ncell {place}: {cell.name}", flush=True)
        return training_cell.run_cell(cell, config, out, scale, end)

    command.record(out / "records" / f"{cell.name}.json", config, make)


def _records(out: pathlib.Path, todo: Sequence[Cell]) -> dict[str, Any]:
    """Returns the available records, in the order of their cells."""
    paths = [out / "records" / f"{cell.name}.json" for cell in todo]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()}


def _initial_gradients(path: pathlib.Path, scale: Scale) -> dict[str, Any]:
    """Returns the gradients of initialized cells, which are computed once for each size; ``--small`` has another."""
    settings = [scale.transformer["d_model"], scale.distances, scale.gradient_seeds]
    found = json.loads(path.read_text()) if path.exists() else {}
    if found.get("settings") != settings:
        size, distances, seeds = settings
        norms = measures.initial_gradient_norms(size, distances, seeds=range(seeds))
        found = {"settings": settings, "norms": norms}
        write_text(path, json.dumps(found) + "\n")
    return found["norms"]


if __name__ == "__main__":
    command.script(main)
