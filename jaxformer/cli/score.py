"""``jaxformer score``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from jaxformer.cli.command import File, OutputFile, command, option
from jaxformer.cli.output import as_json, put
from jaxformer.cli.predictors import TO, EnsembleOptions, configured, directed, load_ensemble
from jaxformer.errors import ConfigError, DataError


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
    out: OutputFile | None = option("The file to write to, instead of printing.")
    json: bool = option("Print one JSON object per line, with each token.", False)


@command
def main(args: Score, settings: list[str]) -> int:
    """Prints the log-probabilities of given translations, or of given texts."""
    config = configured(args, settings)
    pairs = config.task == "translation"
    if (args.target is not None) != (pairs and args.source is not None):
        needed = "a translation model needs --source and --target, or neither"
        raise ConfigError(f"{needed}; a language model has no --target")
    from jaxformer.cli import runtime
    from jaxformer.data.sources import read_lines

    files = [read_lines(path) for path in (args.source, args.target) if path is not None]
    if len(files) == 2 and len(files[0]) != len(files[1]):
        raise DataError(f"{args.source} has {len(files[0]):,} lines, but {args.target} has {len(files[1]):,}")
    scorer = directed(load_ensemble(args, config), args.to)

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
