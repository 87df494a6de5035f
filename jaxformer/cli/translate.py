"""``jaxformer translate``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.output import as_columns, as_data, as_json, put, say_programs
from jaxformer.cli.paths import local_path, output_file, sentence
from jaxformer.cli.predictors import (
    SETTINGS,
    SHORT,
    add_ensemble_option,
    add_run_options,
    add_search_options,
    configured,
    load_ensemble,
    split_settings,
)

if TYPE_CHECKING:
    from jaxformer.tasks.translation import Translator

EXAMPLES = """examples:
  jaxformer translate runs/demo "The old man does not see the white house."
  jaxformer translate runs/en-de --file test.en --out test.de
  jaxformer translate runs/en-de --n-best 3 --beam-size 8 "A dog runs."
  jaxformer translate runs/en-de --sample --top-p .9 --seed 1 "A dog runs."
  jaxformer translate runs/en-de --file test.en --mbr 32 --json
  jaxformer translate runs/en-de --forbid Hund,Katze "A dog runs."
  jaxformer translate runs/one "A dog runs." --ensemble runs/two runs/three
  echo "A dog runs." | jaxformer translate runs/en-de  # line by line, as they come
"""


def main(arguments: Sequence[str]) -> int:
    """Prints the translations of arguments, of a file, or of standard input."""
    parser = argparse.ArgumentParser(
        prog="jaxformer translate",
        usage="jaxformer translate RUN [SENTENCE ...] [options] [--decode.NAME VALUE ...]",
        description="Translates sentences: arguments, a file, or standard input line by line.",
        epilog=SETTINGS + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("sentences", nargs="*", type=sentence, metavar="SENTENCE", help="sentences to translate")
    parser.add_argument("--file", type=local_path, help="a file of sentences, one per line")
    parser.add_argument("--out", type=output_file, help="the file to write translations to, instead of printing them")
    parser.add_argument("--prefix", type=sentence, default="", metavar="TEXT", help="the beginning of each translation")
    parser.add_argument("--alignments", action="store_true", help="print word links, such as 0-0 1-2, after each text")
    add_ensemble_option(parser)
    add_search_options(parser, SHORT)
    rest, settings = split_settings(arguments, SHORT)
    options = parser.parse_intermixed_args(rest)  # options may stand between the run and the sentences
    if options.sentences and options.file:
        parser.error("give sentences or --file, not both")
    config = configured(options, settings)
    from jaxformer.cli.lines import standard_input
    from jaxformer.data.sources import read_lines
    from jaxformer.tasks.translation import Translator

    translator = load_ensemble(options, config)
    assert isinstance(translator, Translator)
    sentences = options.sentences or (read_lines(options.file) if options.file else None)
    if sentences is None:
        batches = standard_input(translator.decode.batch_size)
        lines = (line for batch in batches for line in _translated(translator, options, *zip(*batch, strict=True)))
    else:
        lines = iter(_translated(translator, options, range(1, len(sentences) + 1), sentences))
    put(lines, options.out)
    if sentences is None or options.file:
        say_programs(translator.programs)
    return 0


def _translated(
    translator: Translator, options: argparse.Namespace, numbers: Sequence[int], sentences: Sequence[str]
) -> Iterator[str]:
    """Yields the lines to print for sentences with consecutive numbers."""
    from jaxformer.cli import runtime
    from jaxformer.training.progress import Count, print_line

    say = functools.partial(print_line, runtime.console())
    candidates = translator.candidates(
        sentences,
        n_best=options.n_best,
        first=numbers[0] if len(numbers) else 1,
        prefixes=[options.prefix] * len(sentences) if options.prefix else None,
        warn=say,
        progress=Count(len(sentences), "sentences", say),
    )
    links = [[""] * len(best) for best in candidates]
    if options.alignments:
        pairs = [(text, c.text) for text, best in zip(sentences, candidates, strict=True) for c in best]
        found = iter(translator.alignments([source for source, _ in pairs], [target for _, target in pairs]))
        links = [[" ".join(f"{s}-{t}" for s, t in next(found)) for _ in best] for best in candidates]
    for number, text, best, linked in zip(numbers, sentences, candidates, links, strict=True):
        if options.json:
            rows = zip(best, linked, strict=True)
            alignments = [{"alignment": own} if options.alignments else {} for _, own in rows]
            shown = [as_data(c, translator.tokenizer) | own for c, own in zip(best, alignments, strict=True)]
            yield as_json({"number": number, "source": text, "translations": shown})
            continue
        for candidate, own in zip(best, linked, strict=True):
            yield as_columns(number, candidate, options, *([own] if options.alignments else []))
