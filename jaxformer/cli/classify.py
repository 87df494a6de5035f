"""``jaxformer classify``."""

from __future__ import annotations

import argparse
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxformer.cli.output import as_json, put
from jaxformer.cli.paths import local_path, output_file, picture, sentence
from jaxformer.cli.predictors import add_run_options, configured, load

if TYPE_CHECKING:
    from jaxformer.tasks.base import Predictor
    from jaxformer.tasks.classification import Classified
    from jaxformer.tasks.vision import ClassifiedImage

    Classify = Callable[[Sequence[str], int], Iterable[str]]
    """A function from inputs, and the number of the first one, to the lines of the result."""

EXAMPLES = """examples:
  jaxformer classify runs/sst2 "a gorgeous , witty , seductive movie ."
  jaxformer classify runs/sst2 --file reviews.txt --out classes.tsv
  echo "What is an atom ?" | jaxformer classify runs/trec  # line by line, as they come
  jaxformer classify runs/animals cat.png dog.jpg --picture maps.png
  jaxformer classify runs/animals --file names.txt --json | jq .probabilities.cat

Each line of the result has three columns: the class, the probability of every class, and the name of the image or, for
a text, the words to which the class token attends most (the mean of all heads of the last layer). A text that is too
long for the run is truncated, and a line on standard error reports that. An image of another size than the
model's is scaled to cover that size, and center-cropped. --picture overlays each image with the attention of the
last layer and the rollout of all layers. Attention shows where a model looked, not why.
"""

MOST = 32
"""The maximum number of images in one picture."""

TEXTS = 32
"""The maximum number of lines of standard input that are classified at once."""


def main(arguments: Sequence[str]) -> int:
    """Prints the classes of arguments, of the lines of a file, or of the lines of standard input."""
    parser = argparse.ArgumentParser(
        prog="jaxformer classify",
        usage="jaxformer classify RUN [TEXT ... | IMAGE ...] [options]",
        description="Classifies texts or images: arguments, the lines of a file, or standard input line by line.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("inputs", nargs="*", type=sentence, metavar="INPUT", help="texts, or names of image files")
    parser.add_argument("--file", type=local_path, help="a file of texts or of image names, one per line")
    parser.add_argument("--out", type=output_file, help="the file to write to, instead of printing")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line, with all probabilities")
    parser.add_argument("--words", type=int, help="the number of words of a text to show (default 5)")
    parser.add_argument(
        "--picture", type=picture, help=f"a picture (.png, .svg or .pdf) of the attention over the first {MOST} images"
    )
    options = parser.parse_intermixed_args(arguments)
    if options.inputs and options.file:
        parser.error("give inputs or --file, not both")
    if (options.words or 0) < 0:
        parser.error(f"--words must be at least 0, got {options.words}")
    if options.words is not None and options.json:
        parser.error("--json prints all words of a text, so --words has no effect")
    if options.picture and not (options.inputs or options.file):
        parser.error("--picture needs the names of images, or --file")
    config = configured(options, ())
    for name, task in OPTIONS.items():
        if getattr(options, name) is not None and config.task != task:
            parser.error(f"--{name} is for a run of {task}")
    from jaxformer.cli.lines import image_names, standard_input
    from jaxformer.data.sources import read_lines

    predictor = load(options, config)
    classified = RESULTS.get(config.task, _texts)(predictor, options)
    read = image_names if config.task == "vision" else read_lines
    inputs = options.inputs or (read(options.file) if options.file else None)
    if inputs is None:
        batches = standard_input(1 if config.task == "vision" else TEXTS)
        lines = (line for batch in batches for line in classified([text for _, text in batch], batch[0][0]))
    else:
        lines = classified(inputs, 1)
    put(lines, options.out)
    return 0


def _texts(predictor: Predictor, options: argparse.Namespace) -> Classify:
    """Returns a function from texts to the lines of the result."""
    from jaxformer.cli import runtime
    from jaxformer.tasks.classification import TextClassifier
    from jaxformer.training.progress import print_line

    assert isinstance(predictor, TextClassifier)
    num_words = 5 if options.words is None else options.words
    warn = functools.partial(print_line, runtime.console())

    def classified(texts: Sequence[str], first: int) -> Iterator[str]:
        for text, result in zip(texts, predictor.classify(texts, first=first, warn=warn), strict=True):
            if options.json:
                yield as_json({"text": text, **_named(result), "words": list(map(list, result.words))})
            else:
                yield as_line(result, num_words)

    return classified


def _images(predictor: Predictor, options: argparse.Namespace) -> Classify:
    """Returns a function from names of images to the lines of the result, which draws a picture if requested."""
    from jaxformer.inspection import plots
    from jaxformer.tasks.vision import ImageClassifier

    assert isinstance(predictor, ImageClassifier)

    def classified(names: Sequence[str], _: int) -> list[str]:
        results = predictor.classify(names)
        if options.picture and results:
            shown = results[:MOST]
            files = [pathlib.Path(name).name for name in names[:MOST]]
            titles = [f"{name}\n{x.label} {x.probabilities[x.label]:.0%}" for name, x in zip(files, shown, strict=True)]
            drawn = plots.image_maps([x.image for x in shown], [x.attention_maps for x in shown], titles=titles)
            plots.save(drawn, options.picture)
        return [
            as_json({"image": name, **_named(result)})
            if options.json
            else f"{result.label}\t{_by_weight(result.probabilities.items())}\t{name}"
            for name, result in zip(names, results, strict=True)
        ]

    return classified


def _named(result: Classified | ClassifiedImage) -> dict[str, Any]:
    return {"label": result.label, "probabilities": dict(result.probabilities)}


def as_line(result: Classified, num_words: int) -> str:
    """Returns class, probabilities and words, with tabs between them."""
    return f"{result.label}\t{_by_weight(result.probabilities.items())}\t{_by_weight(result.words, num_words)}"


def _by_weight(pairs: Iterable[tuple[str, float]], number: int | None = None) -> str:
    largest = sorted(pairs, key=lambda pair: -pair[1])[:number]
    return ", ".join(f"{name} {value:.1%}" for name, value in largest)


OPTIONS = {"words": "classification", "picture": "vision"}
"""The task to which each option is restricted."""

RESULTS = {"classification": _texts, "vision": _images}
"""The function from inputs to lines, by the task of the run; one of another package may bring a `TextClassifier`."""
