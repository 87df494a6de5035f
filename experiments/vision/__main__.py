"""Compares a CNN, a CNN with attention and a vision Transformer on small images; the same command resumes.

    python -m experiments.vision --data-dir data --out runs/vision
    python -m experiments.vision --smoke --out runs/smoke

--data-dir holds cifar10_subset/cifar10_subset.zip and mnist/. Each network first tries three learning rates on each
corpus, then is trained with the best of them on three numbers of images and `--seeds` seeds, and on digits of 28 x 28
pixels, which are tested at 28, 32 and 56. A cell that has a record is not repeated, and --minutes ends the call in
time. The smoke version needs no data and its results mean nothing.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

import jaxformer
from experiments import command
from experiments.vision import cells, smoke
from experiments.vision.cells import CORPORA, MODELS, SHIFTS, SIDE, SIZES, Cell, configuration, divide_digits, shifted
from experiments.vision.report import draw, report
from jaxformer.config import changed
from jaxformer.data.image_batches import decode_all
from jaxformer.files import remove_folder
from jaxformer.inspection import plots
from jaxformer.tasks.classes import scores
from jaxformer.tasks.vision import TASK, ImageClassifier, VisionConfig

DRAWN = 6
"""Test images whose attention is drawn."""
PICTURE = "attention.png"
"""The picture in the folder of a run."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "vision", __doc__, out="the folder of runs, records, pictures and the report", data="the corpora"
    )
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA), help="by default both")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="by default all")
    parser.add_argument("--seeds", type=command.count, default=5, help="trainings of each cell (default 5)")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Runs the cells that have no record, then reports.

    Raises:
      ConfigError: the data are not named, or `--out` has records of other settings.
      Stopped: the time was up.
    """
    study = Study(args)
    try:
        for corpus in ["mnist"] if args.smoke else args.corpora:
            for model in args.models:
                records = {cell: study.record(cell) for cell in study.trials(corpus, model)}
                best = max(records, key=lambda cell: records[cell]["validation"])
                for cell in study.measured(corpus, model, best.rate):
                    study.record(cell)
    finally:
        study.report()


class Study:
    """The cells of one call, with its time and its records."""

    def __init__(self, args: argparse.Namespace):
        self.out, self.smoke, self.seeds = args.out, args.smoke, 1 if args.smoke else args.seeds
        self.end = command.end_of_call(args.minutes)
        self.found: dict[Cell, Mapping[str, Any]] = {}
        self.chosen: set[Cell] = set()
        self.directories = {"mnist": self.out / "data", "cifar10": self.out / "data"}
        if self.smoke:
            smoke.prepare(self.out / "data")
            return
        directory = command.data_directory(args.data_dir, "cifar10_subset and mnist")
        self.directories["cifar10"] = directory
        if "mnist" in args.corpora:
            divide_digits(directory / "mnist", self.out / "data")

    def trials(self, corpus: str, model: str) -> list[Cell]:
        """Returns the trainings that choose a learning rate."""
        found = cells.trials(corpus, model)
        return [cell for cell in found if not self.smoke or cell.rate in smoke.RATES]

    def measured(self, corpus: str, model: str, rate: float) -> list[Cell]:
        """Returns the trainings that are reported."""
        found = cells.measured(corpus, model, rate, self.seeds)
        if self.smoke:
            found = [Cell(corpus, model, rate, number) for number in smoke.NUMBERS]
        if not self.smoke or model == "ViT":  # the others have no positions to interpolate
            found += cells.whole(corpus, model, rate, self.seeds)
        self.chosen |= set(found)
        return found

    def record(self, cell: Cell) -> Mapping[str, Any]:
        """Returns the record of a cell, which is trained and scored if it has none.

        Raises:
          ConfigError: the record is of other settings.
          Stopped: the time was up.
        """
        directory = str(pathlib.Path(self.directories[cell.corpus]).resolve())
        config = configuration(cell, directory, smoke.changes(cell.model) if self.smoke else {})

        def measured() -> Mapping[str, Any]:
            metrics = measure(config, self.out / cell.name)
            if cell.side != SIDE:
                metrics["by_size"] = measure_sizes(config, self.out / cell.name)
            picture(config, self.out, cell)
            return metrics

        self.found[cell] = command.trained(config, cell.name, self.out, self.end, measured)
        remove_folder(self.out / cell.name / "checkpoints")  # the record has everything that is reported
        return self.found[cell]

    def report(self) -> None:
        """Writes the tables and the pictures of the cells that are reported and have records."""
        found = {cell: record for cell, record in self.found.items() if cell in self.chosen}
        command.publish(self.out, report(found))
        if found:
            draw(found, self.out / "accuracy.png")
        for cell in found:
            if (path := self.out / cell.name / PICTURE).exists():
                name = f"attention-{cell.data}-{cell.model.replace(' ', '-')}.png"
                shutil.copyfile(path, self.out / name)


def measure(config: VisionConfig, run: pathlib.Path) -> dict[str, Any]:
    """Returns the metrics of a run: accuracy on validation, and on test images by shift, in percent."""
    classifier = jaxformer.load(run)
    assert isinstance(classifier, ImageClassifier)
    images, labels = test_images(config)
    by_shift = {}
    for shift in SHIFTS:
        moves = [(shift, 0), (-shift, 0), (0, shift), (0, -shift)][: 4 if shift else 1]
        found = [scores(labels, classifier.probabilities(shifted(images, *move)))[0].value for move in moves]
        by_shift[str(shift)] = float(np.mean(found))
    validation = jaxformer.evaluate(run, split="validation", say=lambda text: None)["validation"][0].value
    parameters = classifier.net.num_parameters
    return {"accuracy": by_shift["0"], "by_shift": by_shift, "validation": validation, "parameters": parameters}


def measure_sizes(config: VisionConfig, run: pathlib.Path) -> dict[str, float]:
    """Returns the accuracy in percent by the size of the test images; learned positions are interpolated to each."""
    classifier, found = jaxformer.load(run), {}
    assert isinstance(classifier, ImageClassifier)
    for side in SIZES:
        images, labels = test_images(changed(config, {"model": {"image_size": (side, side)}}))
        probabilities = classifier.with_image_size((side, side)).probabilities(images)
        found[str(side)] = scores(labels, probabilities)[0].value
    return found


def test_images(config: VisionConfig) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images of the test, uint8 ``[N, h, w, C]``, and the numbers of their classes."""
    corpus = TASK.read(config)
    assert corpus.test is not None
    shape = (*config.model.image_size, config.model.num_channels)
    return decode_all(corpus.test, shape, None, resize=config.data.resize), corpus.indices(corpus.test)


def picture(config: VisionConfig, out: pathlib.Path, cell: Cell) -> None:
    """Draws what the network of the first seed on all images looked at in some test images, if it attends."""
    if cell.number or cell.seed or cell.model == "CNN":
        return
    classifier = jaxformer.load(out / cell.name)
    assert isinstance(classifier, ImageClassifier)
    images, labels = test_images(config)
    chosen = np.linspace(0, len(images) - 1, DRAWN).astype(int)
    results = classifier.classify_pixels(images[chosen])
    names = [classifier.vocabulary.names[label] for label in labels[chosen]]
    titles = [f"{name}:\n{x.label} {x.probabilities[x.label]:.0%}" for name, x in zip(names, results, strict=True)]
    drawn = plots.image_maps([x.image for x in results], [x.attention_maps for x in results], titles=titles)
    plots.save(drawn, out / cell.name / PICTURE)


if __name__ == "__main__":
    command.script(main)
