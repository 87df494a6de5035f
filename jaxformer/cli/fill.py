"""``jaxformer fill``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.output import as_json, put
from jaxformer.cli.paths import local_path, output_file, sentence
from jaxformer.cli.predictors import add_run_options, configured, load
from jaxformer.errors import DataError

if TYPE_CHECKING:
    from jaxformer.tasks.masked_language_model.task import MaskedPredictor

EXAMPLES = """examples:
  jaxformer fill runs/bert "The old [MASK] sees the house."
  jaxformer fill runs/bert "A [MASK] [MASK] is running." --top-k 3
  jaxformer fill runs/bert --file texts.txt --json --out filled.jsonl
  echo "What is an [MASK] ?" | jaxformer fill runs/bert  # line by line, as they come

Each line of the result has a column for each [MASK]: its most probable tokens with their probabilities. All [MASK] of a
text are predicted at once, independently of each other. A piece that begins a word is shown with "▁", a tab as
"\\t" and a line break as "\\n".
"""

_BREAKS = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""Characters that end a column or a line; for a character model, they are tokens."""


def main(arguments: Sequence[str]) -> int:
    """Prints the most probable tokens at each ``[MASK]`` of arguments, of the lines of a file, or of standard input."""
    parser = argparse.ArgumentParser(
        prog="jaxformer fill",
        usage="jaxformer fill RUN [TEXT ...] [options]",
        description="Predicts the tokens at each [MASK] of texts: arguments, the lines of a file, or standard input.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("texts", nargs="*", type=sentence, metavar="TEXT", help="texts with one [MASK] or more")
    parser.add_argument("--file", type=local_path, help="a file of texts, one per line")
    parser.add_argument("--out", type=output_file, help="the file to write to, instead of printing")
    parser.add_argument(
        "--top-k", type=int, default=5, help="the number of most probable tokens for each [MASK] (default 5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_intermixed_args(arguments)
    if options.texts and options.file:
        parser.error("give texts or --file, not both")
    if options.top_k < 1:
        parser.error(f"--top-k must be at least 1, got {options.top_k}")
    config = configured(options, ())
    from jaxformer.cli.lines import standard_input
    from jaxformer.data.sources import read_lines
    from jaxformer.tasks.masked_language_model.task import MaskedPredictor

    predictor = load(options, config)
    assert isinstance(predictor, MaskedPredictor)
    if options.texts:
        numbered, place = enumerate(options.texts, 1), "text"
    elif options.file:
        numbered, place = enumerate(read_lines(options.file), 1), f"{options.file}, line"
    else:
        numbered, place = (line for batch in standard_input() for line in batch), "standard input, line"
    put(_lines(predictor, numbered, place, options), options.out)
    return 0


def _lines(
    predictor: MaskedPredictor, numbered: Iterable[tuple[int, str]], place: str, options: argparse.Namespace
) -> Iterator[str]:
    for number, text in numbered:
        try:
            filled = predictor.fill(text, top_k=options.top_k)
        except DataError as error:
            raise DataError(f"{place} {number}: {error}") from error
        if options.json:
            # A list, because two tokens may look alike, such as bytes of characters.
            masks = [[{"token": piece, "probability": share} for piece, share in best] for best in filled]
            yield as_json({"text": text, "masks": masks})
        else:
            shown = [[f"{piece.translate(_BREAKS)} {share:.1%}" for piece, share in best] for best in filled]
            yield "\t".join(map(", ".join, shown))
