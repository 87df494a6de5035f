"""The commands that judge given texts or images with a model: ``classify``, ``fill``, ``tag`` and ``score``."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from jaxformer.cli.command import File, Natural, OutputFile, Picture, Positive, Text, command, option, refuse, word
from jaxformer.cli.output import as_json, put
from jaxformer.cli.predictors import (
    FROM,
    TO,
    EnsembleOptions,
    Inputs,
    RunOptions,
    configured,
    directed,
    load,
    load_ensemble,
)
from jaxformer.errors import DataError

if TYPE_CHECKING:
    from jaxformer.tasks.base import Predictor
    from jaxformer.tasks.vision import ClassifiedImage

MOST = 32
"""The maximum number of images in one picture."""

TEXTS = 32
"""The maximum number of lines of standard input that are classified at once."""

_BREAKS = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""Characters that end a column or a line; for a character model, they are tokens."""


@dataclasses.dataclass(frozen=True)
class Classify(Inputs, RunOptions):
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
    json: bool = option("Print one JSON object per line, with all probabilities.", False)
    words: Natural | None = option("The number of words of a text to show (default 5).")
    picture: Picture | None = option(f"A picture (.png, .svg or .pdf) of the attention over the first {MOST} images.")


@command
def classify(args: Classify) -> int:
    """Prints the classes of arguments, of the lines of a file, or of the lines of standard input."""
    has_words = args.words is not None
    refuse(
        (has_words and args.json, "--json prints all words of a text, so --words has no effect"),
        (args.picture and not (args.inputs or args.file), "--picture needs the names of images, or --file"),
    )
    config = configured(args, ())
    refuse(
        (has_words and config.task != "classification", "--words is for a run of classification"),
        (args.picture and config.task != "vision", "--picture is for a run of vision"),
    )
    from jaxformer.cli.lines import batches, image_names
    from jaxformer.data.lines import read_lines

    predictor = load(args, config)
    if config.task == "vision":
        numbered = batches(args.inputs, args.file, read=image_names)
    else:
        numbered = batches(args.inputs, args.file, most=TEXTS, read=read_lines)
    put((line for batch in numbered for line in _classified(predictor, args, *zip(*batch, strict=True))), args.out)
    return 0


def _classified(predictor: Predictor, args: Classify, numbers: Sequence[int], inputs: Sequence[str]) -> Iterator[str]:
    """Yields the lines for inputs with consecutive numbers; those of another package's task are texts."""
    from jaxformer.cli import runtime
    from jaxformer.tasks.classification import TextClassifier
    from jaxformer.tasks.vision import ImageClassifier

    if isinstance(predictor, ImageClassifier):
        images = predictor.classify(inputs)
        if args.picture and images:
            _draw(images[:MOST], inputs[:MOST], args.picture)
        results = [({"image": name}, image, name) for name, image in zip(inputs, images, strict=True)]
    else:
        assert isinstance(predictor, TextClassifier)
        found = predictor.classify(inputs, first=numbers[0], warn=runtime.say)
        most = 5 if args.words is None else args.words
        results = [
            ({"text": text, "words": result.words}, result, _by_weight(result.words, most))
            for text, result in zip(inputs, found, strict=True)
        ]
    for data, result, last in results:
        if args.json:
            yield as_json(data | {"label": result.label, "probabilities": dict(result.probabilities)})
        else:
            yield f"{result.label}\t{_by_weight(result.probabilities.items())}\t{last}"


def _draw(images: Sequence[ClassifiedImage], names: Sequence[str], path: pathlib.Path) -> None:
    from jaxformer.inspection import plots

    files = [pathlib.Path(name).name for name in names]
    titles = [f"{name}\n{x.label} {x.probabilities[x.label]:.0%}" for name, x in zip(files, images, strict=True)]
    plots.save(plots.image_maps([x.image for x in images], [x.attention_maps for x in images], titles=titles), path)


def _by_weight(pairs: Iterable[tuple[str, float]], number: int | None = None) -> str:
    largest = sorted(pairs, key=lambda pair: -pair[1])[:number]
    return ", ".join(f"{name} {value:.1%}" for name, value in largest)


@dataclasses.dataclass(frozen=True)
class Fill(Inputs, RunOptions):
    r"""Predicts the tokens at each [MASK] of texts: arguments, the lines of a file, or standard input.

    examples:
      jaxformer fill runs/bert "The old [MASK] sees the house."
      jaxformer fill runs/bert "A [MASK] [MASK] is running." --top-k 3
      jaxformer fill runs/bert --file texts.txt --json --out filled.jsonl
      echo "What is an [MASK] ?" | jaxformer fill runs/bert  # line by line, as they come

    Each line of the result has a column for each [MASK]: its most probable tokens with their probabilities. All [MASK]
    of a text are predicted at once, independently of each other. A piece that begins a word is shown with "▁", a tab
    as "\t" and a line break as "\n".
    """

    top_k: Positive = option("The number of most probable tokens for each [MASK] (default 5).", 5)
    json: bool = option("Print one JSON object per line.", False)


@command
def fill(args: Fill) -> int:
    """Prints the most probable tokens at each ``[MASK]`` of arguments, of the lines of a file, or of standard input."""
    config = configured(args, ())
    from jaxformer.cli.lines import batches
    from jaxformer.tasks.masked_language_model.task import MaskedPredictor

    predictor = load(args, config)
    assert isinstance(predictor, MaskedPredictor)

    def lines() -> Iterator[str]:
        for number, text in (line for batch in batches(args.inputs, args.file) for line in batch):
            try:
                filled = predictor.fill(text, top_k=args.top_k)
            except DataError as error:
                raise DataError(f"{args.place(number)}: {error}") from error
            if args.json:
                # A list, because two tokens may look alike, such as bytes of characters.
                masks = [[{"token": piece, "probability": share} for piece, share in best] for best in filled]
                yield as_json({"text": text, "masks": masks})
            else:
                shown = [[f"{piece.translate(_BREAKS)} {share:.1%}" for piece, share in best] for best in filled]
                yield "\t".join(map(", ".join, shown))

    put(lines(), args.out)
    return 0


@dataclasses.dataclass(frozen=True)
class Tag(Inputs, RunOptions):
    """Labels each word of texts: arguments, the lines of a file, or standard input line by line.

    examples:
      jaxformer tag runs/names "Ada Lovelace lived in London."
      jaxformer tag runs/names --file texts.txt --json --out names.jsonl
      echo "Do n't stop ." | jaxformer tag runs/names --split spaces  # line by line, as they come

    Each word is a line of the result, with its label and the label's probability; a blank line follows each text. The
    first two columns are a table that can be trained on. Punctuation is split off the ends of words. With --split
    spaces, words are split at spaces only, as in texts whose words have been split like those of the training data.
    """

    json: bool = option("Print one JSON object per line, with the spans of labels such as B-PER.", False)
    split: Literal["punctuation", "spaces"] = option(
        "Split words at punctuation too (default), or spaces.", "punctuation"
    )


@command
def tag(args: Tag) -> int:
    """Prints the labels of the words of arguments, of the lines of a file, or of the lines of standard input."""
    config = configured(args, ())
    from jaxformer.cli.lines import batches
    from jaxformer.tasks.tagging import Tagger

    tagger = load(args, config)
    assert isinstance(tagger, Tagger)
    split = {"punctuation": lambda text: text, "spaces": str.split}[args.split]

    def lines() -> Iterator[str]:
        for batch in batches(args.inputs, args.file, most=TEXTS):
            for number, text in batch:
                if not text.strip():
                    raise DataError(f"{args.place(number)}: expected words, got an empty text")
            texts = [text for _, text in batch]
            for text, found in zip(texts, tagger.tag([split(text) for text in texts]), strict=True):
                if args.json:
                    named = [
                        {"label": kind, "start": start, "stop": stop, "text": " ".join(found.words[start:stop])}
                        for kind, start, stop in found.spans
                    ]
                    yield as_json({"text": text, **dataclasses.asdict(found), "spans": named})
                else:
                    rows = zip(found.words, found.labels, found.probabilities, strict=True)
                    yield "".join(f"{word}\t{label}\t{share:.1%}\n" for word, label, share in rows)

    put(lines(), args.out)
    return 0


@dataclasses.dataclass(frozen=True)
class Score(EnsembleOptions):
    """Scores given pairs with a translation model, or given texts with a language model.

      --decode.batch_size N  the number of pairs per batch, for a translation model
      --decode.average KIND  with --ensemble, what is averaged: log or probability

    examples:
      jaxformer score runs/en-de --source test.en --target test.de
      paste test.en test.de | jaxformer score runs/en-de  # pairs with a tab between them, as they come
      jaxformer score lm --source my.txt --json  # a language model: log-probabilities of each token
      jaxformer score runs/one --source test.en --target test.de --ensemble runs/two

    Each line of the result has the log-probability of the text and its mean per token. For a translation, they include
    its end token; a language model scores neither an end token nor the first token, which it begins with.
    """

    source: File | None = option("A file of sentences, one per line; default: standard input.")
    target: File | None = option("Their translations, line by line.")
    to: str = option(TO, "")
    from_: str = option(FROM, "")
    out: OutputFile | None = option("The file to write to, instead of printing.")
    json: bool = option("Print one JSON object per line, with each token.", False)


@command
def score(args: Score, settings: list[str]) -> int:
    """Prints the log-probabilities of given translations, or of given texts."""
    config = configured(args, settings)
    pairs = config.task == "translation"
    needed = "a translation model needs --source and --target, or neither; a language model has no --target"
    refuse(((args.target is not None) != (pairs and args.source is not None), needed))
    from jaxformer.cli import runtime
    from jaxformer.data.lines import read_lines

    files = [read_lines(path) for path in (args.source, args.target) if path is not None]
    if len(files) == 2 and len(files[0]) != len(files[1]):
        raise DataError(f"{args.source} has {len(files[0]):,} lines, but {args.target} has {len(files[1]):,}")
    scorer = directed(load_ensemble(args, config), args.to, args.from_)

    def lines() -> Iterator[str]:
        numbered = list(enumerate(zip(*files, strict=True), 1))
        for batch in filter(None, [numbered]) if files else _from_standard_input(pairs):
            numbers, texts = zip(*batch, strict=True)
            scores = scorer.score(*map(list, zip(*texts, strict=True)), first=numbers[0], warn=runtime.say)
            for number, scored in zip(numbers, scores, strict=True):
                if args.json:
                    data = {"number": number, "log_prob": scored.log_prob, "mean": scored.mean}
                    yield as_json(data | {"tokens": scored.tokens, "token_log_probs": scored.token_log_probs})
                else:
                    yield f"{scored.log_prob:.4f}\t{scored.mean:.4f}"

    put(lines(), args.out)
    return 0


def _from_standard_input(pairs: bool) -> Iterator[list[tuple[int, tuple[str, ...]]]]:
    """Yields batches of lines with their numbers; each line is split into its texts.

    Raises:
      DataError: a line does not have two texts, separated by a tab; the lines before it have been yielded.
    """
    from jaxformer.cli.lines import standard_input

    for batch in standard_input(64):
        lines = [(number, tuple(text.split("\t")) if pairs else (text,)) for number, text in batch]
        good = list(itertools.takewhile(lambda line: len(line[1]) == 1 + pairs, lines))
        if good:
            yield good
        if len(good) < len(lines):
            number, fields = lines[len(good)]
            needed = "a source and a target with a tab between them"
            raise DataError(f"standard input, line {number}: {needed}, got {len(fields)}")
