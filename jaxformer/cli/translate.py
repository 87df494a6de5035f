"""``jaxformer translate``."""

from __future__ import annotations

import argparse
import functools
import pathlib
from collections.abc import Sequence

from jaxformer.cli.paths import output_file, sentence
from jaxformer.cli.predictors import SETTINGS, add_run_options, configured, load, split_settings

EXAMPLES = """examples:
  jaxformer translate runs/demo "The old man does not see the white house."
  jaxformer translate runs/en-de --file test.en --out test.de
  jaxformer translate runs/en-de --n-best 3 --decode.beam_size 8 "A dog runs."
  echo "A dog runs." | jaxformer translate runs/en-de         line by line, as they come
"""


def main(arguments: Sequence[str]) -> int:
    """Prints the translations of arguments, else of a file, else of standard input."""
    parser = argparse.ArgumentParser(
        prog="jaxformer translate",
        usage="jaxformer translate RUN [SENTENCE ...] [options] [--decode.NAME VALUE ...]",
        description="Translates sentences: arguments, a file, or standard input line by line.",
        epilog=SETTINGS + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("sentences", nargs="*", type=sentence, metavar="SENTENCE", help="sentences to translate")
    parser.add_argument("--file", type=pathlib.Path, help="a file of sentences, one a line")
    parser.add_argument("--out", type=output_file, help="the file to write translations to, instead of printing them")
    parser.add_argument("--n-best", type=int, default=1, help="print the N best: sentence number, score, text")
    rest, settings = split_settings(arguments)
    options = parser.parse_intermixed_args(rest)  # options may stand between the run and the sentences
    if options.sentences and options.file:
        parser.error("give sentences or --file, not both")
    config = configured(options, settings)
    from jaxformer.cli import runtime
    from jaxformer.cli.lines import standard_input
    from jaxformer.data.sources import read_lines
    from jaxformer.files import write_text
    from jaxformer.tasks.translation import Translator
    from jaxformer.training.progress import Count, print_line

    translator = load(options, config, "translate")
    assert isinstance(translator, Translator)

    def translated(sentences: Sequence[str], first: int = 1) -> list[str]:
        progress = Count(len(sentences), "sentences", functools.partial(print_line, runtime.console()))
        if options.n_best == 1:
            return translator.translate(sentences, first=first, progress=progress)
        candidates = translator.candidates(sentences, n_best=options.n_best, first=first, progress=progress)
        return [f"{number}\t{c.score:.4f}\t{c.text}" for number, best in enumerate(candidates, first) for c in best]

    sentences = options.sentences or (read_lines(options.file) if options.file else None)
    if sentences is None:
        lines = (line for number, text in standard_input() for line in translated([text], number))
    else:
        lines = translated(sentences)
    if options.out:
        write_text(options.out, "".join(f"{line}\n" for line in lines))
        return 0
    for line in lines:
        print(line, flush=True)
    return 0
