"""``jaxformer classify``."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.paths import output_file, picture, sentence
from jaxformer.cli.predictors import add_run_options, configured, load

if TYPE_CHECKING:
    from jaxformer.tasks.base import Predictor
    from jaxformer.tasks.classification import Classified

EXAMPLES = """examples:
  jaxformer classify runs/sst2 "a gorgeous , witty , seductive movie ."
  jaxformer classify runs/sst2 --file reviews.txt --out classes.tsv
  echo "What is an atom ?" | jaxformer classify runs/trec            line by line, as they come
  jaxformer classify runs/animals cat.png dog.jpg --picture maps.png

Each line of the result has three columns: the class, the probability of every class, and for a text the words that the
class token looked at most in the last layer, the mean of all heads; for an image its name. An image of another size
than the model's is scaled until it covers the size, and cut around its middle. --picture lays over each image what the
last layer looked at, and the rollout of all layers. Attention shows where a model looked, not why.
"""

MOST = 32
"""The most images of one picture."""


def main(arguments: Sequence[str]) -> int:
    """Prints the classes of arguments, else of the lines of a file, else of standard input."""
    parser = argparse.ArgumentParser(
        prog="jaxformer classify",
        usage="jaxformer classify RUN [TEXT ... | IMAGE ...] [options]",
        description="Classifies texts or images: arguments, the lines of a file, or standard input line by line.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("inputs", nargs="*", type=sentence, metavar="INPUT", help="texts, or names of image files")
    parser.add_argument("--file", type=pathlib.Path, help="a file of texts or of names of images, one a line")
    parser.add_argument("--out", type=output_file, help="the file to write to, instead of printing")
    parser.add_argument("--words", type=int, help="the number of words of a text to show (default 5)")
    parser.add_argument("--picture", type=picture, help="a picture (.png, .svg or .pdf) of what a model of images saw")
    options = parser.parse_intermixed_args(arguments)
    if options.inputs and options.file:
        parser.error("give inputs or --file, not both")
    if (options.words or 0) < 0:
        parser.error(f"--words must be at least 0, got {options.words}")
    config = configured(options, ())
    from jaxformer.cli.lines import standard_input
    from jaxformer.data.sources import read_lines
    from jaxformer.files import write_text
    from jaxformer.tasks.vision.config import VisionConfig

    of_images = isinstance(config, VisionConfig)
    if (
        wrong := "words"
        if of_images and options.words is not None
        else "picture"
        if options.picture and not of_images
        else ""
    ):
        parser.error(f"--{wrong} is for a run of {'text classification' if of_images else 'vision'}")
    if options.picture and not (options.inputs or options.file):
        parser.error("--picture needs the names of images, or --file")
    predictor = load(options, config, "classify")
    classified = _images(predictor, options.picture) if of_images else _texts(predictor, options.words)
    inputs = options.inputs or (read_lines(options.file) if options.file else None)
    if inputs is None:
        lines = (line for batch in standard_input() for line in classified([text for _, text in batch]))
    else:
        lines = classified(inputs)
    if options.out:
        write_text(options.out, "".join(f"{line}\n" for line in lines))
        return 0
    for line in lines:
        print(line, flush=True)
    return 0


def _texts(predictor: Predictor, num_words: int | None) -> Callable[[Sequence[str]], Iterable[str]]:
    """Returns a function from texts to the lines of the result."""
    from jaxformer.tasks.classification import TextClassifier

    assert isinstance(predictor, TextClassifier)
    return lambda texts: (
        as_line(result, 5 if num_words is None else num_words) for result in predictor.classify(texts)
    )


def _images(predictor: Predictor, path: pathlib.Path | None) -> Callable[[Sequence[str]], Iterable[str]]:
    """Returns a function from names of images to the lines of the result, which draws a picture if there is a path."""
    from jaxformer.inspection import plots
    from jaxformer.tasks.vision import ImageClassifier

    assert isinstance(predictor, ImageClassifier)

    def classified(names: Sequence[str]) -> list[str]:
        results = predictor.classify(names)
        if path and results:
            shown = results[:MOST]
            titles = [f"{result.label} {result.probabilities[result.label]:.0%}" for result in shown]
            plots.image_maps([x.image for x in shown], [x.looked for x in shown], path, titles=titles)
        return [
            f"{result.label}\t{_by_weight(result.probabilities.items())}\t{name}"
            for name, result in zip(names, results, strict=True)
        ]

    return classified


def as_line(result: Classified, num_words: int) -> str:
    """Returns class, probabilities and words, with tabs between them."""
    return f"{result.label}\t{_by_weight(result.probabilities.items())}\t{_by_weight(result.words, num_words)}"


def _by_weight(pairs: Iterable[tuple[str, float]], number: int | None = None) -> str:
    largest = sorted(pairs, key=lambda pair: -pair[1])[:number]
    return ", ".join(f"{name} {value:.1%}" for name, value in largest)
