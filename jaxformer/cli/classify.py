"""``jaxformer classify``."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.paths import output_file, sentence
from jaxformer.cli.predictors import add_run_options, configured, load

if TYPE_CHECKING:
    from jaxformer.tasks.classification import Classified

EXAMPLES = """examples:
  jaxformer classify runs/sst2 "a gorgeous , witty , seductive movie ."
  jaxformer classify runs/sst2 --file reviews.txt --out classes.tsv
  echo "What is an atom ?" | jaxformer classify runs/trec            line by line, as they come

Each line of the result has three columns: the class, the probability of every class, and the words that the class token
looked at most in the last layer, the mean of all heads. Attention shows where a model looked, not why.
"""


def main(arguments: Sequence[str]) -> int:
    """Prints the classes of arguments, else of the lines of a file, else of standard input."""
    parser = argparse.ArgumentParser(
        prog="jaxformer classify",
        usage="jaxformer classify RUN [TEXT ...] [options]",
        description="Classifies texts: arguments, a file, or standard input line by line.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("texts", nargs="*", type=sentence, metavar="TEXT", help="texts to classify")
    parser.add_argument("--file", type=pathlib.Path, help="a file of texts, one a line")
    parser.add_argument("--out", type=output_file, help="the file to write to, instead of printing")
    parser.add_argument("--words", type=int, default=5, help="the number of words to show (default 5)")
    options = parser.parse_intermixed_args(arguments)
    if options.texts and options.file:
        parser.error("give texts or --file, not both")
    if options.words < 0:
        parser.error(f"--words must be at least 0, got {options.words}")
    config = configured(options, ())
    from jaxformer.cli.lines import standard_input
    from jaxformer.data.sources import read_lines
    from jaxformer.files import write_text
    from jaxformer.tasks.classification import TextClassifier

    classifier = load(options, config, "classify")
    assert isinstance(classifier, TextClassifier)
    texts = options.texts or (read_lines(options.file) if options.file else None)
    if texts is None:
        results = (result for batch in standard_input() for result in classifier.classify([text for _, text in batch]))
    else:
        results = classifier.classify(texts)
    lines = (as_line(result, options.words) for result in results)
    if options.out:
        write_text(options.out, "".join(f"{line}\n" for line in lines))
        return 0
    for line in lines:
        print(line, flush=True)
    return 0


def as_line(result: Classified, num_words: int) -> str:
    """Returns class, probabilities and words, with tabs between them."""
    percent = lambda pairs: ", ".join(f"{name} {value:.1%}" for name, value in pairs)
    by_weight = lambda pairs: sorted(pairs, key=lambda pair: -pair[1])
    words = by_weight(result.words)[:num_words]
    return f"{result.label}\t{percent(by_weight(result.probabilities.items()))}\t{percent(words)}"
