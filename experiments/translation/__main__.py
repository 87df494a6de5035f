"""Trains translators of Multi30k from the corpus to the figure, and reports the time; the same command resumes.

    python -m experiments.translation --out runs/reproduce
    python -m experiments.translation --out runs/reproduce --seeds 3 --config de_en
    python -m experiments.translation --out runs/short --set train.steps=2000 --set optimizer.cooldown=0.3
    python -m experiments.translation --out runs/methods --seeds 3 --methods plain sampling r-drop ensemble distilled
    python -m experiments.translation --smoke --out runs/smoke

Each seed is trained, its last checkpoints are averaged, and the average is scored: on the validation set, by which you
may tune, and once on test_2016. The corpus is fetched into --data-dir if it is not there. The clock runs while the
program does, from its start to the averaged parameters; the time for compilation is also reported. The smoke
version needs no data and its results mean nothing.

Methods: `sampling` draws new segmentations in each epoch (subword regularization, or BPE-dropout for bpe), `r-drop`
makes two passes agree, `sampling-r-drop` does both. `ensemble` translates with all seeds of the method that is best on
the validation set, `ensemble-mbr` also chooses among its 16 best by minimum Bayes risk, and `distilled` trains seeds
on the ensemble's translations of the training data.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command
from experiments.translation import multi30k, smoke, systems
from experiments.translation.report import draw, report
from experiments.translation.systems import Record
from jaxformer.cli.arguments import override
from jaxformer.config import changed
from jaxformer.data import fetch
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.training.logging import read_log

NAMES = ("en_de", "de_en", "en_fr", "published", "published_accelerator")
CONFIGS = {name: getattr(multi30k, name) for name in NAMES}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("translation", __doc__, out="the folder of the runs, their records and the report")
    parser.add_argument("--config", choices=CONFIGS, default="en_de", help="of experiments/translation/multi30k.py")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the run")
    parser.add_argument("--data-dir", type=pathlib.Path, default=pathlib.Path("data"), help="default: data")
    parser.add_argument("--seeds", type=command.count, default=1, help="trainings of each method (default 1)")
    parser.add_argument(
        "--average", type=command.count, default=10, help="the checkpoints that are averaged (default 10)"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=systems.METHODS,
        default=["plain"],
        metavar="METHOD",
        help=f"of {', '.join(systems.METHODS)} (default plain)",
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="the time limit of this call in minutes; 0 for none")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Makes and scores the systems that have no record, then reports.

    Raises:
      ConfigError: a setting is wrong, methods do not go together, or `--out` has records of other settings.
      DataError: the corpus cannot be fetched.
      Stopped: the time was up.
    """
    end = command.end_of_call(args.minutes)
    systems.check(args.methods, args.seeds)
    config = override(CONFIGS[args.config](), [f"--{setting}" for setting in args.set])
    if args.smoke:
        config, args.data_dir = changed(config, smoke.CHANGES), args.out / "data"
        smoke.prepare(args.data_dir)
    elif any(not (args.data_dir / file.path).exists() for file in fetch.CATALOG["multi30k"].files):
        fetch.fetch("multi30k", args.data_dir, say=print)
    config = changed(config, {"data": {"directory": str(args.data_dir.resolve())}})
    records: dict[str, list[Record]] = {}
    try:
        for method in (name for name in systems.METHODS if name in args.methods):
            _make(method, config, args, end, records)
    finally:
        if records:
            command.publish(args.out, report(config.name, records))
            draw(_logs(args.out, records), args.out / "curves.png")


def _make(
    method: str, config: TranslationConfig, args: argparse.Namespace, end: float, records: dict[str, list[Record]]
) -> None:
    """Adds the records of a method to those of the methods before it."""
    out = systems.folder(args.out, method)
    if method not in systems.TRAINED:
        best = systems.best(records)
        runs = [systems.folder(args.out, best) / f"seed-{seed}" for seed in range(args.seeds)]
        config = systems.configured(config, best)
        if method in systems.SEARCHES:
            records[method] = [systems.ensemble_record(config, runs, out / "record.json", method)]
            return
        target = systems.distill(config, runs, out / f"teacher-{best}-{args.seeds}", end)
        config = changed(config, {"data": {"target": str(target.resolve())}})
    else:
        config = systems.configured(config, method)
    for seed in range(args.seeds):
        record = systems.trained(changed(config, {"seed": seed}), out, args.average, end)
        records.setdefault(method, []).append(record)


def _logs(out: pathlib.Path, records: Mapping[str, Sequence[Record]]) -> dict[str, list[list[dict[str, Any]]]]:
    """Returns the logs of the seeds of each method; an ensemble has none, and the folder of a run may be gone."""
    logs: dict[str, list[list[dict[str, Any]]]] = {}
    for method, found in records.items():
        paths = [systems.folder(out, method) / f"seed-{seed}" / "log.jsonl" for seed in range(len(found))]
        if there := [read_log(path) for path in paths if path.exists()]:
            logs[method] = there
    return logs


if __name__ == "__main__":
    command.script(main)
