"""Compares ways to classify sentences, from a pre-trained encoder and from scratch; the same command resumes.

    python -m experiments.classification --data-dir data --pretrained runs/pretraining/run --out runs/classification
    python -m experiments.classification --smoke --out runs/smoke

--data-dir holds sst2/, cola/, trec/ and agnews/. A cell that has a record is not repeated, and --minutes ends the call
in time. The bag of words needs scikit-learn (pip install -e ".[experiments]"). The smoke version needs no data and its
results mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import itertools
import json
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jaxformer
from experiments import command
from experiments.classification import smoke
from experiments.classification.corpora import BAG, FILES, WAYS, Cell, cells, configuration
from experiments.classification.report import draw, report, summary
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.evaluation.scores import accuracy, matthews
from jaxformer.files import remove_folder
from jaxformer.tasks import registry, rundir
from jaxformer.tasks.classification import TASK, ClassificationConfig
from jaxformer.tasks.text import FILES as TOKENIZERS
from jaxformer.training.logging import read_log

EPOCHS = {"average": 8}
"""Passes over the training data, if not 3."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "classification", __doc__, out="the folder of runs, records and the report", data="the corpora"
    )
    parser.add_argument("--pretrained", type=pathlib.Path, help="a run of masked_language_model")
    parser.add_argument("--corpora", nargs="+", choices=FILES, default=list(FILES), help="by default all")
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, BAG], help="by default all")
    parser.add_argument("--seeds", type=command.count, default=5, help="trainings of each way and corpus (default 5)")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Runs the cells that have no record, then reports.

    Raises:
      ConfigError: a folder is missing, or `--out` has records of other settings.
      Stopped: the time was up.
    """
    end, changes = command.end_of_call(args.minutes), {}
    if args.smoke:
        args.data_dir, args.pretrained, args.corpora, args.seeds = *smoke.prepare(args.out), ["sst2"], 1
        args.ways, changes = args.ways or smoke.WAYS, smoke.CHANGES
    if args.pretrained is None:
        raise ConfigError("--pretrained must name a run of masked_language_model")
    directory = command.data_directory(args.data_dir, "the corpora")
    todo = [cell for cell in cells(args.corpora, args.seeds) if not args.ways or cell.way in args.ways]
    try:
        for number, cell in enumerate(todo, 1):
            print(f"\ncell {number} of {len(todo)}: {cell.name}", flush=True)
            do(cell, args.out, directory, args.pretrained, changes, end)
    finally:
        paths = [(cell, record_of(cell, args.out)) for cell in todo]
        records = [(cell, json.loads(path.read_text(encoding="utf-8"))) for cell, path in paths if path.exists()]
        command.write_results(args.out / "results.json", {"facts": command.facts(), **summary(records)})
        paths = [(cell, args.out / cell.name / "log.jsonl") for cell, _ in records]
        if logs := [(cell, list(read_log(path))) for cell, path in paths if path.exists()]:
            draw(logs, args.out / "curves.png")
        command.publish(args.out, report(records))


def record_of(cell: Cell, out: pathlib.Path) -> pathlib.Path:
    """Returns the path of the record of a cell."""
    return out / "records" / f"{cell.name}.json"


def do(
    cell: Cell,
    out: pathlib.Path,
    directory: pathlib.Path,
    pretrained: pathlib.Path,
    changes: Mapping[str, Any],
    end: float,
) -> None:
    """Trains and scores a cell that has no record.

    Raises:
      ConfigError: the record is of other settings, or of an encoder that was trained for another number of steps.
      Stopped: the time was up.
    """
    way = dataclasses.replace(cell, way="average") if cell.way == BAG else cell
    config = configuration(way, str(directory.resolve()), str(pretrained.resolve()), changes)
    path, run = record_of(cell, out), out / cell.name
    if cell.way == BAG:
        if importlib.util.find_spec("sklearn") is None:
            print("scikit-learn is not installed, so there is no bag of words")
        else:
            command.record(path, config, functools.partial(bag_of_words, config))
        return
    steps = EPOCHS.get(cell.way, 3) * steps_per_epoch(config, pretrained) if not changes else config.train.steps
    warmup = min(config.optimizer.warmup_steps, max(1, steps // 10))
    train = {"steps": steps, "validate_every": max(1, steps // 4), "checkpoint_every": max(1, steps // 4)}
    config = changed(config, {"train": train | {"tensorboard": False}, "optimizer": {"warmup_steps": warmup}})

    def make() -> Mapping[str, Any]:
        rows = list[Mapping[str, Any]]()
        seconds = command.train(config, run, end)
        scores = jaxformer.evaluate(run, split="test", on_examples=lambda name, found: rows.extend(found))
        metrics = {score.name: score.value for score in scores["test"]}
        return {**metrics, "rows": rows, "steps": steps, "seconds": seconds, "encoder steps": encoder}

    encoder = registry.read_config(pretrained).train.steps if config.init_from else 0
    started = command.record(path, config, make).get("encoder steps", encoder)
    if started != encoder:  # the settings have its folder, in which it may have been trained on
        raise ConfigError(f"{path} is of an encoder of {started:,} steps, not of {encoder:,}; choose another --out")
    remove_folder(run / "checkpoints")  # some hundred runs; the record has everything that is reported


def steps_per_epoch(config: ClassificationConfig, pretrained: pathlib.Path) -> int:
    """Returns the batches of one pass over the training data, in the tokens of the run it starts from."""
    with tempfile.TemporaryDirectory() as folder:
        if config.init_from:
            rundir.copy_files(pretrained, pathlib.Path(folder), TOKENIZERS)
        data = TASK.prepare(config, TASK.read(config), pathlib.Path(folder))
    return data.train.steps_per_epoch


def bag_of_words(config: ClassificationConfig) -> dict[str, Any]:
    """Returns the scores of a logistic regression of the counts of words and pairs of words."""
    from sklearn.feature_extraction.text import CountVectorizer  # pyright: ignore[reportMissingImports] - an extra
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports] - an extra
    from sklearn.pipeline import make_pipeline  # pyright: ignore[reportMissingImports] - an extra

    corpus = TASK.read(config)
    assert corpus.test is not None
    # Every word counts: apostrophes and marks too, which the corpora keep apart.
    words = CountVectorizer(analyzer=_words_and_pairs)
    model = make_pipeline(words, LogisticRegression(max_iter=1000)).fit(
        corpus.train.texts, corpus.indices(corpus.train)
    )
    labels, guesses = corpus.indices(corpus.test), model.predict(corpus.test.texts)
    scores = [accuracy(float((labels == guesses).sum()), len(labels)), matthews(labels, guesses)]
    rows = _rows(corpus.test.texts, corpus.test.labels, [corpus.classes[guess] for guess in guesses])
    return {score.name: score.value for score in scores} | {"rows": rows}


def _words_and_pairs(text: str) -> list[str]:
    words = text.split()
    return words + [f"{first} {second}" for first, second in itertools.pairwise(words)]


def _rows(texts: Sequence[str], labels: Sequence[str], guesses: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"text": text, "label": label, "guess": guess}
        for text, label, guess in zip(texts, labels, guesses, strict=True)
    ]


if __name__ == "__main__":
    command.script(main)
