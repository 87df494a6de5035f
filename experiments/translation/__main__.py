"""Trains translators of Multi30k from the corpus to the figure, and says how long that took; the same command resumes.

    python -m experiments.translation --out runs/reproduce
    python -m experiments.translation --out runs/reproduce --seeds 3 --config de_en
    python -m experiments.translation --out runs/short --set train.steps=2000 --set optimizer.cooldown=0.3
    python -m experiments.translation --smoke --out runs/smoke

Each seed is trained, its last checkpoints are averaged, and the average is scored: on the validation set, by which you
may tune, and once on test_2016. The corpus is fetched into --data-dir if it is not there. The clock runs while the
program does, from its start to the averaged parameters; how much of it was compiling is said beside it. The smoke
version needs no data and its results mean nothing.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jaxformer
from experiments import command
from experiments.classification.report import interval
from experiments.translation import multi30k, smoke
from jaxformer.cli.arguments import override
from jaxformer.config import changed
from jaxformer.data import fetch
from jaxformer.errors import ConfigError
from jaxformer.files import write_text
from jaxformer.tasks.translation import TranslationConfig

CONFIGS = {name: getattr(multi30k, name) for name in ("en_de", "de_en", "en_fr", "published")}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("translation", __doc__, out="the folder of the runs, their records and the report")
    parser.add_argument("--config", choices=CONFIGS, default="en_de", help="of experiments/translation/multi30k.py")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the run")
    parser.add_argument("--data-dir", type=pathlib.Path, default=pathlib.Path("data"), help="default: data")
    parser.add_argument("--seeds", type=command.count, default=1, help="trainings (default 1)")
    parser.add_argument("--average", type=int, default=10, help="the checkpoints that are averaged (default 10)")
    parser.add_argument("--minutes", type=float, default=0.0, help="the most time of this call; 0 for no limit")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Trains, averages and scores the seeds that have no record, then reports.

    Raises:
      ConfigError: a setting is wrong, or `--out` has records of other settings.
      DataError: the corpus cannot be fetched.
      Stopped: the time was up.
    """
    end = command.end_of_call(args.minutes)
    config = override(CONFIGS[args.config](), [f"--{setting}" for setting in args.set])
    if args.smoke:
        config, args.data_dir = changed(config, smoke.CHANGES), args.out / "data"
        smoke.prepare(args.data_dir)
    elif not (args.data_dir / "multi30k").is_dir():
        fetch.fetch("multi30k", args.data_dir, say=print)
    config = changed(config, {"data": {"directory": str(args.data_dir.resolve())}})
    records = []
    try:
        for seed in range(args.seeds):
            records.append(reproduced(changed(config, {"seed": seed}), args.out, args.average, end))
    finally:
        if records:
            text = report(config.name, records)
            write_text(args.out / "report.md", text)
            print(text)


def reproduced(config: TranslationConfig, out: pathlib.Path, last: int, end: float) -> dict[str, Any]:
    """Returns the record of a seed, made if it is missing.

    Raises:
      ConfigError: the record is of other settings.
      Stopped: the time was up.
    """
    folder, path = out / f"seed-{config.seed}", out / "records" / f"seed-{config.seed}.json"

    def make() -> Mapping[str, Any]:
        command.train(config, folder, end)
        return {"last": last, **averaged(folder, last), "facts": command.facts()}

    found = command.record(path, config, make)
    if found["last"] != last:
        raise ConfigError(f"{path} is an average of {found['last']} checkpoints, not of {last}; choose another --out")
    return found


def averaged(folder: pathlib.Path, last: int) -> dict[str, Any]:
    """Returns the checkpoints of a run's average, its scores, and the seconds of each part of the work."""
    began = time.monotonic()
    steps = jaxformer.average(folder, last=last)
    calls = json.loads((folder / "time.json").read_text())
    parts: dict[str, float] = {}
    for call in calls:
        for part, seconds in call["seconds"].items():
            parts[part] = parts.get(part, 0.0) + seconds
    parts["averaging"] = time.monotonic() - began
    predictor = jaxformer.load(folder, checkpoint="average")
    scores = {
        split: [
            {"name": score.name, "value": score.value, "signature": score.signature}
            for found in jaxformer.evaluate(folder, predictor, split=split).values()
            for score in found
        ]
        for split in ("validation", "test")
    }
    return {"averaged": steps, "seconds": parts, "scores": scores}


def report(name: str, records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the scores and times of the seeds as Markdown, with their mean and interval."""
    names = [score["name"] for score in records[0]["scores"]["test"]]
    columns = [(split, i) for split in ("validation", "test") for i in range(len(names))]
    heads = [f"{names[i]}, {split}" for split, i in columns]
    lines = [
        f"{name}, average of {len(records[0]['averaged'])} checkpoints",
        "",
        "| seed | " + " | ".join(heads) + " | minutes | of these compiling |",
        "|---" * (len(heads) + 3) + "|",
    ]
    values = [[record["scores"][split][i]["value"] for split, i in columns] for record in records]
    for seed, (row, record) in enumerate(zip(values, records, strict=True)):
        seconds = record["seconds"]
        times = (sum(seconds.values()) / 60, seconds.get("compiling", 0.0) / 60)
        lines.append(f"| {seed} | " + " | ".join(f"{x:.2f}" for x in (*row, *times)) + " |")
    if len(records) > 1:
        lines.append("| mean | " + " | ".join(map(interval, map(list, zip(*values, strict=True)))) + " | | |")
    facts = records[-1]["facts"]
    lines += ["", f"{facts['date']}, {facts['processor']}, jax {facts['jax']}, commit {facts['commit'] or 'unknown'}"]
    lines += sorted({f"- {score['name']}: {score['signature']}" for score in records[0]["scores"]["test"]})
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    command.script(main)
