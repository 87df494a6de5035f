"""Trains translators of Multi30k from the corpus to the figure, and says how long that took; the same command resumes.

    python -m experiments.translation --out runs/reproduce
    python -m experiments.translation --out runs/reproduce --seeds 3 --config de_en
    python -m experiments.translation --out runs/short --set train.steps=2000 --set optimizer.cooldown=0.3
    python -m experiments.translation --out runs/methods --seeds 3 --methods plain sampling r-drop ensemble distilled
    python -m experiments.translation --smoke --out runs/smoke

Each seed is trained, its last checkpoints are averaged, and the average is scored: on the validation set, by which you
may tune, and once on test_2016. The corpus is fetched into --data-dir if it is not there. The clock runs while the
program does, from its start to the averaged parameters; how much of it was compiling is said beside it. The smoke
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

from experiments import command
from experiments.intervals import interval
from experiments.translation import multi30k, smoke, systems
from experiments.translation.systems import Record
from jaxformer.cli.arguments import override
from jaxformer.config import changed
from jaxformer.data import fetch
from jaxformer.files import write_text
from jaxformer.tasks.translation import TranslationConfig

CONFIGS = {name: getattr(multi30k, name) for name in ("en_de", "de_en", "en_fr", "published")}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("translation", __doc__, out="the folder of the runs, their records and the report")
    parser.add_argument("--config", choices=CONFIGS, default="en_de", help="of experiments/translation/multi30k.py")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the run")
    parser.add_argument("--data-dir", type=pathlib.Path, default=pathlib.Path("data"), help="default: data")
    parser.add_argument("--seeds", type=command.count, default=1, help="trainings of each method (default 1)")
    parser.add_argument("--average", type=int, default=10, help="the checkpoints that are averaged (default 10)")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=systems.METHODS,
        default=["plain"],
        metavar="METHOD",
        help=f"of {', '.join(systems.METHODS)} (default plain)",
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="the most time of this call; 0 for no limit")
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
    elif not (args.data_dir / "multi30k").is_dir():
        fetch.fetch("multi30k", args.data_dir, say=print)
    config = changed(config, {"data": {"directory": str(args.data_dir.resolve())}})
    records: dict[str, list[Record]] = {}
    try:
        for method in (name for name in systems.METHODS if name in args.methods):
            _make(method, config, args, end, records)
    finally:
        if records:
            text = report(config.name, records)
            write_text(args.out / "report.md", text)
            print(text)


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


def report(name: str, records: Mapping[str, Sequence[Record]]) -> str:
    """Returns the scores and times of all systems as Markdown, with means over seeds and their intervals."""
    every = [record for found in records.values() for record in found]
    names = [score["name"] for score in every[0]["scores"]["test"]]
    columns = [(split, i) for split in ("validation", "test") for i in range(len(names))]
    heads = [f"{names[i]}, {split}" for split, i in columns]
    lines = [
        f"{name}, average of {len(every[0]['averaged'])} checkpoints",
        "",
        "| method | seed | " + " | ".join(heads) + " | minutes | of these compiling |",
        "|---" * (len(heads) + 4) + "|",
    ]
    for method, found in records.items():
        values = [[record["scores"][split][i]["value"] for split, i in columns] for record in found]
        for seed, (row, record) in enumerate(zip(values, found, strict=True)):
            seconds = record["seconds"]
            times = (sum(seconds.values()) / 60, seconds.get("compiling", 0.0) / 60)
            label = seed if "averaged" in record else "all"
            lines.append(f"| {method} | {label} | " + " | ".join(f"{x:.2f}" for x in (*row, *times)) + " |")
        if len(found) > 1:
            means = map(interval, map(list, zip(*values, strict=True)))
            lines.append(f"| {method} | mean | " + " | ".join(means) + " | | |")
    facts = every[-1]["facts"]
    lines += ["", f"{facts['date']}, {facts['processor']}, jax {facts['jax']}, commit {facts['commit'] or 'unknown'}"]
    lines += sorted({f"- {score['name']}: {score['signature']}" for score in every[0]["scores"]["test"]})
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    command.script(main)
