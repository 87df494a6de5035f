"""``jaxformer classify``."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.command import File, OutputFile, Picture, Text, command, option, word
from jaxformer.cli.output import as_json, put
from jaxformer.cli.predictors import RunOptions, configured, load
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.tasks.base import Predictor
    from jaxformer.tasks.classification import Classified
    from jaxformer.tasks.vision import ClassifiedImage

MOST = 32
"""The maximum number of images in one picture."""

TEXTS = 32
"""The maximum number of lines of standard input that are classified at once."""


@dataclasses.dataclass(frozen=True)
class Classify(RunOptions):
    """Classifies texts or images: arguments, the lines of a file, or standard input line by line.

    examples:
      jaxformer classify runs/sst2 "a gorgeous , witty , seductive movie ."
      jaxformer classify runs/sst2 --file reviews.txt --out classes.tsv
      echo "What is an atom ?" | jaxformer classify runs/trec  # line by line, as they come
      jaxformer classify runs/animals cat.png dog.jpg --picture maps.png
      jaxformer classify runs/animals --file names.txt --json | jq .probabilities.cat

    Each line of the result has three columns: the class, the probability of every class, and the name of the image or,
    for a text, the words to which the class token attends most (the mean of all heads of the last layer). A text that
    is too long for the run is truncated, and a line on standard error reports that. An image of another size than the
    model's is scaled to cover that size, and center-cropped. --picture overlays each image with the attention of the
    last layer and the rollout of all layers. Attention shows where a model looked, not why.
    """

    inputs: tuple[Text, ...] = word("Texts, or names of image files.", ())
    file: File | None = option("A file of texts or of image names, one per line.")
    out: OutputFile | None = option("The file to write to, instead of printing.")
    json: bool = option("Print one JSON object per line, with all probabilities.", False)
    words: int | None = option("The number of words of a text to show (default 5).")
    picture: Picture | None = option(f"A picture (.png, .svg or .pdf) of the attention over the first {MOST} images.")


@command
def main(args: Classify) -> int:
    """Prints the classes of arguments, of the lines of a file, or of the lines of standard input."""
    if args.inputs and args.file:
        raise ConfigError("give inputs or --file, not both")
    if (args.words or 0) < 0:
        raise ConfigError(f"--words must be at least 0, got {args.words}")
    if args.words is not None and args.json:
        raise ConfigError("--json prints all words of a text, so --words has no effect")
    if args.picture and not (args.inputs or args.file):
        raise ConfigError("--picture needs the names of images, or --file")
    config = configured(args, ())
    for name, value, task in (("words", args.words, "classification"), ("picture", args.picture, "vision")):
        if value is not None and config.task != task:
            raise ConfigError(f"--{name} is for a run of {task}")
    from jaxformer.cli.lines import batches, image_names
    from jaxformer.data.sources import read_lines

    predictor = load(args, config)
    read, most = (image_names, 1) if config.task == "vision" else (read_lines, TEXTS)
    numbered = batches(args.inputs, args.file, most=most, read=read)
    put((line for batch in numbered for line in _lines(predictor, args, *zip(*batch, strict=True))), args.out)
    return 0


def _lines(predictor: Predictor, args: Classify, numbers: Sequence[int], inputs: Sequence[str]) -> Iterator[str]:
    """Yields the lines for inputs with consecutive numbers; those of another package's task are texts."""
    from jaxformer.cli import runtime
    from jaxformer.tasks.classification import TextClassifier
    from jaxformer.tasks.vision import ImageClassifier

    if isinstance(predictor, ImageClassifier):
        images = predictor.classify(inputs)
        if args.picture and images:
            _draw(images[:MOST], inputs[:MOST], args.picture)
        for name, image in zip(inputs, images, strict=True):
            shares = _by_weight(image.probabilities.items())
            yield as_json({"image": name, **_named(image)}) if args.json else f"{image.label}\t{shares}\t{name}"
        return
    assert isinstance(predictor, TextClassifier)
    for text, result in zip(inputs, predictor.classify(inputs, first=numbers[0], warn=runtime.say), strict=True):
        if args.json:
            yield as_json({"text": text, **_named(result), "words": list(map(list, result.words))})
        else:
            words = _by_weight(result.words, 5 if args.words is None else args.words)
            yield f"{result.label}\t{_by_weight(result.probabilities.items())}\t{words}"


def _draw(images: Sequence[ClassifiedImage], names: Sequence[str], path: pathlib.Path) -> None:
    from jaxformer.inspection import plots

    files = [pathlib.Path(name).name for name in names]
    titles = [f"{name}\n{x.label} {x.probabilities[x.label]:.0%}" for name, x in zip(files, images, strict=True)]
    plots.save(plots.image_maps([x.image for x in images], [x.attention_maps for x in images], titles=titles), path)


def _named(result: Classified | ClassifiedImage) -> dict[str, object]:
    return {"label": result.label, "probabilities": dict(result.probabilities)}


def _by_weight(pairs: Iterable[tuple[str, float]], number: int | None = None) -> str:
    largest = sorted(pairs, key=lambda pair: -pair[1])[:number]
    return ", ".join(f"{name} {value:.1%}" for name, value in largest)
