"""Trains one model of six directions of Multi30k beside six models; the same command resumes.

    python -m experiments.multilingual --data-dir data --out runs/multilingual --minutes 20   # repeat until it is done
    python -m experiments.multilingual --data-dir data --out runs/multilingual --cases en-de six
    python -m experiments.multilingual --full --data-dir data --out runs/multilingual-full    # for an accelerator
    python -m experiments.multilingual --smoke --out runs/smoke

--data-dir holds multi30k/ (`jaxformer data fetch multi30k`). "six" trains all directions between English, German and
French with tags of the target language, "four" all but those between German and French, which it then translates
without having seen a pair of them. A model has --steps updates a direction, 4,096 tokens each. A training that has a
record is not repeated, and --minutes ends the call in time. The smoke version's results mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import jaxformer
from experiments import command
from experiments.translation import multi30k, smoke
from jaxformer.config import changed
from jaxformer.files import remove_folder
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.tasks.translation.config import CorpusConfig
from jaxformer.training.logging import read_log

DIRECTIONS = [f"{source}-{target}" for source, target in itertools.permutations(("en", "de", "fr"), 2)]
CASES = {
    **{direction: [direction] for direction in DIRECTIONS},
    "six": DIRECTIONS,
    "four": [direction for direction in DIRECTIONS if "en" in direction],
}
"""The directions that each model is trained on."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("multilingual", __doc__, out="the folder of runs, records and the report")
    parser.add_argument("--data-dir", type=pathlib.Path, help="the folder of multi30k; default: JAXFORMER_DATA")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=f"of {[*CASES]}")
    parser.add_argument("--steps", type=command.count, help="updates a direction (default 600; with --full 8000)")
    parser.add_argument("--full", action="store_true", help="4 + 4 layers, 11,264 tokens an update; not 2 + 2, 4,096")
    parser.add_argument("--seed", type=int, default=0, help="the seed of all trainings (default 0)")
    parser.add_argument("--minutes", type=float, default=0.0, help="the time limit of this call in minutes; 0 for none")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Trains and scores the models that have no record, then reports.

    Raises:
      ConfigError: the data are not named, or `--out` has records of other settings.
      Stopped: the time was up.
    """
    end = command.end_of_call(args.minutes)
    directory = args.out / "data" if args.smoke else command.data_directory(args.data_dir, "multi30k")
    if args.smoke:
        smoke.prepare(directory)
    steps = 2 if args.smoke else args.steps or (8000 if args.full else 600)
    found = dict[str, Mapping[str, Any]]()
    try:
        for case in args.cases:
            config = configuration(case, args.seed, directory, steps, full=args.full)
            if args.smoke:
                train = {"steps": steps * len(CASES[case])}
                config = changed(config, smoke.CHANGES | {"train": smoke.CHANGES["train"] | train})
            found[case] = record(case, config, directory, args.out, end)
    finally:
        if found:
            command.publish(args.out, report(found))


def configuration(
    case: str, seed: int, directory: pathlib.Path, steps: int, *, full: bool = False
) -> TranslationConfig:
    """Returns the configuration of a case: an own vocabulary for one direction, and one with tags for several.

    Args:
      steps: the updates a direction.
      full: see ``--full``.
    """
    directions = CASES[case]
    data: dict[str, Any] = {"directory": str(directory.resolve())}
    if len(directions) == 1:
        (files,) = (entry(direction) for direction in directions)
        data |= files
    else:
        config = multi30k.en_de()
        data |= {name: getattr(type(config.data), name) for name in entry("en-de")}
        data |= {"vocab_size": 8000, "tags": "source"}
        data["corpora"] = {direction.replace("-", "_"): CorpusConfig(**entry(direction)) for direction in directions}
    total = steps * len(directions)
    layers = 4 if full else 2
    model = {"num_encoder_layers": layers, "num_decoder_layers": layers}
    data |= {"tokens_per_batch": 11264, "num_shapes": 2} if full else {"num_shapes": 4}
    changes = {
        "name": f"multilingual: {case}",
        "seed": seed,
        "model": model,
        "data": data,
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": min(1000, total // 4), "cooldown": 0.5},
        "train": {"steps": total, "validate_every": 0, "checkpoint_every": max(100, total // 12), "keep_last": 1},
        "decode": {"validation_sentences": 0},
    }
    return changed(multi30k.en_de(), changes | {"train": changes["train"] | {"patience": 0}})


def entry(direction: str) -> dict[str, Any]:
    """Returns the settings of the files and languages of a direction."""
    settings = dict[str, Any](zip(("source_language", "target_language"), direction.split("-"), strict=True))
    for side in ("source", "target"):
        language = settings[f"{side}_language"]
        for name, part in (("", "train"), ("validation_", "val"), ("test_", "test_2016")):
            settings[f"{name}{side}"] = f"multi30k/{part}.{language}"
    return settings


def record(
    case: str, config: TranslationConfig, directory: pathlib.Path, out: pathlib.Path, end: float
) -> dict[str, Any]:
    """Returns the BLEU of each direction of a model and what it cost; trains it if it has no record.

    Raises:
      ConfigError: the record is of other settings.
      Stopped: the time was up.
    """

    def make() -> Mapping[str, Any]:
        print(f"\n{case}: {config.train.steps:,} updates", flush=True)
        seconds = command.train(config, out / case, end)
        log = [line for line in read_log(out / case / "log.jsonl") if "loss" in line]
        translator = jaxformer.load(out / case, checkpoint="last")
        bleu = {}
        for direction in DIRECTIONS if config.data.corpora else CASES[case]:
            source, target = direction.split("-")
            files = [directory / "multi30k" / f"test_2016.{language}" for language in (source, target)]
            into = translator.to(target) if config.data.corpora else translator
            ((score, *_),) = jaxformer.evaluate(out / case, into, files=files).values()
            bleu[direction] = score.value
        return {
            "bleu": bleu,
            "tokens": sum(line["tokens"] for line in log),
            "parameters": translator.net.num_parameters,
            "updates": config.train.steps,
            "seconds": seconds,
            **command.facts(),
        }

    found = command.record(out / "records" / f"{case}.json", config, make)
    remove_folder(out / case / "checkpoints")
    return found


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns BLEU by direction, and what the models cost, as Markdown; a direction without training has a star.

    >>> one = {"bleu": {"en-de": 30.25}, "tokens": 2e6, "parameters": 3e6, "updates": 600, "seconds": 120.0}
    >>> about = {"date": "2026-01-01", "processor": "X", "jax": "1", "commit": "a"}
    >>> print(report({"en-de": one | about}))
    | BLEU | own model |
    |---|---|
    | en-de | 30.2 |
    <BLANKLINE>
    | model | parameters | updates | target tokens | minutes |
    |---|---|---|---|---|
    | en-de | 3.0 M | 600 | 2.0 M | 2.0 |
    <BLANKLINE>
    2026-01-01, X, jax 1, commit a
    <BLANKLINE>
    """
    several = [case for case in ("six", "four") if case in found]
    lines = [f"| BLEU | {' | '.join(['own model', *several])} |", "|---" * (2 + len(several)) + "|"]
    rows = {direction: [found.get(direction, {}).get("bleu", {}).get(direction)] for direction in DIRECTIONS}
    for direction, row in rows.items():
        row += [found[case]["bleu"].get(direction) for case in several]
        stars = ["", *("*" * (direction not in CASES[case]) for case in several)]
        if any(value is not None for value in row):
            cells = ["" if value is None else f"{value:.1f}{star}" for value, star in zip(row, stars, strict=True)]
            lines.append(f"| {direction} | {' | '.join(cells)} |")
    if several and all(None not in row for row in rows.values()):
        means = [sum(column) / len(column) for column in zip(*rows.values(), strict=True)]
        lines.append(f"| mean | {' | '.join(f'{mean:.1f}' for mean in means)} |")
    lines += ["", "| model | parameters | updates | target tokens | minutes |", "|---|---|---|---|---|"]
    for case, each in found.items():
        numbers = f"{each['parameters'] / 1e6:.1f} M | {each['updates']:,} | {each['tokens'] / 1e6:.1f} M"
        lines.append(f"| {case} | {numbers} | {each['seconds'] / 60:.1f} |")
    for line in sorted(
        {f"{x['date']}, {x['processor']}, jax {x['jax']}, commit {x['commit']}" for x in found.values()}
    ):
        lines += ["", line]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    command.script(main)
