"""Describes the boxes and towers of NLVR with soft, hard and Transformer attention; the same command resumes.

    python -m experiments.captioning --data-dir data --out runs/captioning
    python -m experiments.captioning --smoke --out runs/smoke

--data-dir holds nlvr_captions/captions.tsv and images.zip. The convolutions of all captioners are trained first, on
single objects cut out of the pictures, and hard attention starts from soft attention. Captions are checked: the objects
of a picture are recovered from its pixels, and a small grammar reads the caption. A captioner that has a record is not
trained again, and --minutes ends the call in time. The smoke version needs no data and its results mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import jaxformer
from experiments import command
from experiments.captioning import smoke
from experiments.captioning.boxes import Box, boxes
from experiments.captioning.corpus import CUTOUTS, FOLDER, MODELS, configuration, divide, pictures, spread
from experiments.captioning.cutouts import configuration as configuration_of_cutouts
from experiments.captioning.cutouts import write_cutouts
from experiments.captioning.measures import best_constant, entropies, grounding, movement, nearest
from experiments.tables import table
from jaxformer.data.captions import captions_of
from jaxformer.data.image_batches import decode_all
from jaxformer.data.images import LabeledImages
from jaxformer.errors import ConfigError
from jaxformer.evaluation.scores import bleu
from jaxformer.files import write_text
from jaxformer.inspection import plots
from jaxformer.tasks.captioning import TASK, CaptioningConfig, ImageCaptioner

DRAWN = 6
"""Test pictures whose attention is drawn."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "captioning", __doc__, out="the folder of runs, records, pictures and the report", data=FOLDER
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="by default all")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Trains and measures the captioners that have no record, then reports.

    Raises:
      ConfigError: the data are not named, or `--out` has records of other settings.
      Stopped: the time was up.
    """
    end = command.end_of_call(args.minutes)
    if "hard" in args.models and "soft" not in args.models:
        raise ConfigError("hard attention starts from the parameters of soft: --models must name soft, too")
    folder = args.out / "data" if args.smoke else command.data_directory(args.data_dir, FOLDER) / FOLDER
    if args.smoke:
        smoke.prepare(folder)
    configs, known = prepare(args.models, folder, args.out, smoke.changes if args.smoke else lambda model: {})
    found = baselines(next(iter(configs.values())), known)
    cutouts = configuration_of_cutouts(args.out.resolve() / "parts", smoke.CUTOUTS if args.smoke else {})
    try:
        seen = command.trained(cutouts, CUTOUTS, args.out, end, functools.partial(accuracy, args.out / CUTOUTS))
        print(f"{seen['accuracy']:.1f}% of held-out cutouts have their right class")
        for model, config in configs.items():
            measured = functools.partial(measure, config, model, args.out)
            found[model] = command.trained(config, model, args.out, end, measured)
    finally:
        command.publish(args.out, report(found))


def prepare(
    models: Sequence[str], folder: pathlib.Path, out: pathlib.Path, changes: Callable[[str], Mapping[str, Any]]
) -> tuple[dict[str, CaptioningConfig], list[Sequence[Box]]]:
    """Writes the parts of the corpus and the cutouts.

    Returns:
      The configuration of each captioner, and the objects of the pictures of training.
    """
    parts = out.resolve() / "parts"
    divide(folder / "captions.tsv", parts)
    places = str((folder / "images.zip").resolve()), parts, out.resolve()
    configs = {model: configuration(model, *places, changes(model)) for model in MODELS if model in models}
    written = TASK.read(next(iter(configs.values())))
    known, held_out = objects(written.train), objects(written.validation)
    own = (parts / "train.tsv").read_text(encoding="utf-8")
    write_text(parts / "train.tsv", own + "".join(f"{line}\n" for line in spread(written.train, known)))
    write_cutouts(written.train, known, parts / "cutouts-train.zip")
    write_cutouts(written.validation, held_out, parts / "cutouts-validation.zip")
    return configs, known


def baselines(config: CaptioningConfig, known: Sequence[Sequence[Box]]) -> dict[str, Mapping[str, Any]]:
    """Returns the metrics of the sentences that people wrote, and of captions that need no training.

    Args:
      known: the objects of the pictures of training.
    """
    corpus = TASK.read(config)
    assert corpus.test is not None
    shape = (*config.model.image.image_size, config.model.image.num_channels)
    train, test = (decode_all(part, shape, None, resize="fit") for part in (corpus.train, corpus.test))
    own = objects(corpus.test)
    learned = [captions[0] for captions in captions_of(corpus.train)]  # the first one was written for it
    constant = best_constant(learned, known)
    said = {
        "people": [captions[0] for captions in captions_of(corpus.test)],
        f'always "{constant}"': [constant] * len(own),
        "nearest neighbor": [learned[i] for i in nearest(test, train)],
    }
    return {name: scored(captions, corpus.test, own) for name, captions in said.items()}


def objects(images: LabeledImages) -> list[Sequence[Box]]:
    """Returns the boxes of each picture, recovered from its pixels."""
    return [boxes(picture) for picture in pictures(images)]


def scored(captions: Sequence[str], images: LabeledImages, own: Sequence[Sequence[Box]]) -> dict[str, Any]:
    """Returns the shares of true captions, in percent, and BLEU."""
    found = grounding(captions, own)
    shares = dataclasses.asdict(found) | {"difference": found.difference}
    metrics = {name: 100 * share for name, share in shares.items()}
    return metrics | {"bleu": bleu(captions, captions_of(images)).value, "different": len(set(captions))}


def accuracy(run: pathlib.Path) -> dict[str, float]:
    """Returns the scores of a classifier of images on its validation data."""
    return {score.name: score.value for score in jaxformer.evaluate(run, split="validation")["validation"]}


def measure(config: CaptioningConfig, model: str, out: pathlib.Path) -> dict[str, Any]:
    """Returns the metrics of a trained captioner on the test, and draws what its words looked at."""
    captioner = jaxformer.load(out / model, checkpoint="last")  # at the lowest loss, every picture has the same caption
    assert isinstance(captioner, ImageCaptioner)
    corpus = TASK.read(config)
    assert corpus.test is not None
    images = decode_all(corpus.test, captioner.shape, None, resize="fit")
    said = [best[0].text for best in captioner.candidates(images)]
    maps, grid = captioner.attention_maps(images, said), config.model.image.grid_size
    chosen = np.linspace(0, len(images) - 1, DRAWN).astype(int)
    titles = [corpus.test.store.names[corpus.test.indices[i]].rpartition(".")[0] for i in chosen]
    sheet = plots.caption_sheet([images[i] for i in chosen], [maps[i] for i in chosen], grid=grid, titles=titles)
    plots.save(sheet, out / f"sheet-{model}.png")
    lines = zip(corpus.test.indices, said, captions_of(corpus.test), strict=True)
    table = (f"{corpus.test.store.names[i]}\t{caption}\t{own[0]}\n" for i, caption, own in lines)
    write_text(out / f"captions-{model}.tsv", "".join(table))
    return {
        **scored(said, corpus.test, objects(corpus.test)),
        "entropies": entropies(maps),
        "movement": movement(maps, grid),
        "parameters": captioner.net.num_parameters,
    }


def report(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the results as Markdown: truth and BLEU of all captions, then the attention of the captioners."""
    heading = ("captions", "true of the own picture", "of other pictures", "difference", "parsed", "BLEU", "different")
    rows = []
    for name, found in records.items():
        metrics = (f"{found[key]:.1f}" for key in ("own", "shuffled", "difference", "parsed", "bleu"))
        minutes = f"{found['seconds'] / 60:.0f}" if "seconds" in found else ""
        rows.append((name, *metrics, found["different"], minutes))
    tables = [table((*heading, "minutes"), *rows)]
    trained = {name: found for name, found in records.items() if "entropies" in found}
    classes = sorted({word for found in trained.values() for word in found["entropies"]})
    rows = [
        (
            name,
            *(f"{found['entropies'][word][0]:.3f}" if word in found["entropies"] else "" for word in classes),
            f"{found['movement']:.3f}",
        )
        for name, found in trained.items()
    ]
    if rows:
        tables.append(table(("entropy of attention", *classes, "distance between words"), *rows))
    return "\n\n".join(tables) + "\n"


if __name__ == "__main__":
    command.script(main)
