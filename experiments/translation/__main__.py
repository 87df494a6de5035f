"""Trains translators of Multi30k from the corpus to the figure, and reports the time; the same command resumes.

    python -m experiments.translation --out runs/reproduce
    python -m experiments.translation --out runs/reproduce --seeds 3 --config de_en
    python -m experiments.translation --out runs/short --set train.steps=2000 --set optimizer.cooldown=0.3
    python -m experiments.translation --out runs/methods --seeds 3 --methods plain sampling r-drop ensemble distilled
    python -m experiments.translation --config muon --methods bidirectional-simcut --minutes 140 --out runs/beyond
    python -m experiments.translation --config muon --full --methods simcut --seeds 3 --out runs/beyond-full
    python -m experiments.translation --verify runs/beyond/records/seed-0.json --out runs/verified
    python -m experiments.translation --smoke --out runs/smoke

Each seed is trained, its last checkpoints are averaged, and the average is scored: on the validation set, by which you
may tune, and once on test_2016. The corpus is fetched into --data-dir if it is not there. The clock runs while the
program does, from its start to the averaged parameters; the time for compilation is also reported. The smoke
version needs no data and its results mean nothing.

Methods: `sampling` draws new segmentations in each epoch (subword regularization, or BPE-dropout for bpe), `r-drop`
makes two passes agree, `sampling-r-drop` does both, and `simcut` makes a pass over cut-off tokens agree with a clean
one. `bidirectional` and `bidirectional-simcut` first train a model of both directions for as long, and start from it.
`ensemble` translates with all seeds of the method that is best on the validation set, `ensemble-mbr` also chooses among
its 16 best by minimum Bayes risk, and `distilled` trains seeds on the ensemble's translations of the training data.

--verify checks a record: that it is of this commit and of its configuration, that the first 20 updates have its losses
(bit for bit on its processor and versions, otherwise to 1e-4), and, if the parameters are there, its scores.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command
from experiments.translation import multi30k, smoke, systems, verify
from experiments.translation.report import draw, report
from experiments.translation.systems import Record
from jaxformer.cli.arguments import override
from jaxformer.config import changed
from jaxformer.data import fetch
from jaxformer.errors import ConfigError
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.training.logging import read_log

NAMES = ("en_de", "de_en", "en_fr", "published", "published_accelerator", "muon", "muon_accelerator")
CONFIGS = {name: getattr(multi30k, name) for name in NAMES}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("translation", __doc__, out="the folder of the runs, their records and the report")
    parser.add_argument("--config", choices=CONFIGS, default="en_de", help="of experiments/translation/multi30k.py")
    parser.add_argument("--full", action="store_true", help="the version of the configuration for an accelerator")
    parser.add_argument("--verify", type=pathlib.Path, metavar="RECORD", help="check a record, and train nothing")
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
      DataError: the corpus cannot be fetched, or the record to verify does not hold.
      Stopped: the time was up.
    """
    end = command.end_of_call(args.minutes)
    if args.verify:
        command.publish(args.out, verify.verify(args.verify, args.data_dir))
        return
    systems.check(args.methods, args.seeds)
    name = args.config + "_accelerator" * args.full
    if name not in CONFIGS:
        raise ConfigError(f"--full needs a configuration for an accelerator, which {args.config} has not")
    config = override(CONFIGS[name](), [f"--{setting}" for setting in args.set])
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
        record = systems.trained(changed(config, {"seed": seed}), out, args.average, end, method=method)
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
