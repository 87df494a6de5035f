"""``jaxformer fill``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from jaxformer.cli.command import File, OutputFile, Text, command, option, word
from jaxformer.cli.output import as_json, put
from jaxformer.cli.predictors import RunOptions, configured, load
from jaxformer.errors import ConfigError, DataError

_BREAKS = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""Characters that end a column or a line; for a character model, they are tokens."""


@dataclasses.dataclass(frozen=True)
class Fill(RunOptions):
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

    inputs: tuple[Text, ...] = word("Texts with one [MASK] or more.", ())
    file: File | None = option("A file of texts, one per line.")
    out: OutputFile | None = option("The file to write to, instead of printing.")
    top_k: int = option("The number of most probable tokens for each [MASK] (default 5).", 5)
    json: bool = option("Print one JSON object per line.", False)


@command
def main(args: Fill) -> int:
    """Prints the most probable tokens at each ``[MASK]`` of arguments, of the lines of a file, or of standard input."""
    if args.inputs and args.file:
        raise ConfigError("give texts or --file, not both")
    if args.top_k < 1:
        raise ConfigError(f"--top-k must be at least 1, got {args.top_k}")
    config = configured(args, ())
    from jaxformer.cli.lines import batches
    from jaxformer.tasks.masked_language_model.task import MaskedPredictor

    predictor = load(args, config)
    assert isinstance(predictor, MaskedPredictor)
    place = "text" if args.inputs else f"{args.file or 'standard input'}, line"

    def lines() -> Iterator[str]:
        for number, text in (line for batch in batches(args.inputs, args.file) for line in batch):
            try:
                filled = predictor.fill(text, top_k=args.top_k)
            except DataError as error:
                raise DataError(f"{place} {number}: {error}") from error
            if args.json:
                # A list, because two tokens may look alike, such as bytes of characters.
                masks = [[{"token": piece, "probability": share} for piece, share in best] for best in filled]
                yield as_json({"text": text, "masks": masks})
            else:
                shown = [[f"{piece.translate(_BREAKS)} {share:.1%}" for piece, share in best] for best in filled]
                yield "\t".join(map(", ".join, shown))

    put(lines(), args.out)
    return 0
