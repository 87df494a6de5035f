"""``jaxformer translate``."""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxformer.cli.paths import local_path, output_file, sentence
from jaxformer.cli.predictors import SETTINGS, add_run_options, add_search_options, configured, load, split_settings

if TYPE_CHECKING:
    from jaxformer.tasks.search import Candidate
    from jaxformer.tasks.translation import Translator

EXAMPLES = """examples:
  jaxformer translate runs/demo "The old man does not see the white house."
  jaxformer translate runs/en-de --file test.en --out test.de
  jaxformer translate runs/en-de --n-best 3 --decode.beam_size 8 "A dog runs."
  jaxformer translate runs/en-de --sample --top-p .9 --seed 1 "A dog runs."
  jaxformer translate runs/en-de --file test.en --mbr 32 --json
  jaxformer translate runs/one "A dog runs." --ensemble runs/two runs/three
  echo "A dog runs." | jaxformer translate runs/en-de         line by line, as they come
"""

SHORT = (
    "--sample",
    "--temperature",
    "--top-k",
    "--top-p",
    "--min-p",
    "--seed",
    "--beam-size",
    "--min-length",
    "--no-repeat",
    "--mbr",
)


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
    parser.add_argument("--prefix", type=sentence, default="", metavar="TEXT", help="the beginning of each translation")
    parser.add_argument("--alignments", action="store_true", help="print word links, such as 0-0 1-2, after each text")
    parser.add_argument(
        "--ensemble", nargs="+", type=local_path, default=[], metavar="RUN", help="further runs that choose together"
    )
    add_search_options(parser, *SHORT)
    rest, settings = split_settings(arguments, SHORT)
    options = parser.parse_intermixed_args(rest)  # options may stand between the run and the sentences
    if options.sentences and options.file:
        parser.error("give sentences or --file, not both")
    config = configured(options, settings)
    from jaxformer.cli.lines import standard_input
    from jaxformer.data.sources import read_lines
    from jaxformer.files import write_text

    translator = _loaded(options, config, settings)
    sentences = options.sentences or (read_lines(options.file) if options.file else None)
    if sentences is None:
        batches = standard_input(translator.decode.batch_size)
        lines = (line for batch in batches for line in _translated(translator, options, *zip(*batch, strict=True)))
    else:
        lines = iter(_translated(translator, options, range(1, len(sentences) + 1), sentences))
    if options.out:
        write_text(options.out, "".join(f"{line}\n" for line in lines))
    else:
        for line in lines:
            print(line, flush=True)
    if sentences is None or options.file:
        count = len(translator.programs)
        print(f"used {count} compiled search program{'s' * (count != 1)}", file=sys.stderr)
    return 0


def _loaded(options: argparse.Namespace, config: Any, settings: Sequence[str]) -> Translator:
    """Returns the translator of a run, or of an ensemble of runs."""
    from jaxformer.tasks.translation import Translator

    translator = load(options, config, "translate")
    assert isinstance(translator, Translator)
    others = []
    for run in options.ensemble:
        given = argparse.Namespace(**{**vars(options), "run": run})
        others.append(load(given, configured(given, settings), "translate"))
    return translator.together_with(others)


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
        cut=say,
        progress=Count(len(sentences), "sentences", say),
    )
    links = [[""] * len(best) for best in candidates]
    if options.alignments:
        pairs = [(text, c.text) for text, best in zip(sentences, candidates, strict=True) for c in best]
        found = iter(translator.alignments([source for source, _ in pairs], [target for _, target in pairs]))
        links = [[" ".join(f"{s}-{t}" for s, t in next(found)) for _ in best] for best in candidates]
    for number, text, best, linked in zip(numbers, sentences, candidates, links, strict=True):
        if options.json:
            shown = [_as_data(translator, c, own, options) for c, own in zip(best, linked, strict=True)]
            yield json.dumps({"number": number, "source": text, "translations": shown}, ensure_ascii=False)
            continue
        for candidate, own in zip(best, linked, strict=True):
            first = [str(number)] if options.n_best > 1 else []
            first += [f"{candidate.score:.4f}"] if options.n_best > 1 or options.scores else []
            yield "\t".join([*first, candidate.text, *([own] if options.alignments else [])])


def _as_data(translator: Translator, candidate: Candidate, links: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns a translation as data for JSON; a score of minus infinity is null."""
    finite = lambda value: value if math.isfinite(value) else None
    end = [translator.tokenizer.special.eos] * (len(candidate.token_log_probs) - len(candidate.tokens))
    data = {
        "text": candidate.text,
        "score": finite(candidate.score),
        "log_prob": finite(candidate.log_prob),
        "tokens": translator.tokenizer.pieces([*candidate.tokens, *end]),
        "token_log_probs": [finite(value) for value in candidate.token_log_probs],
    }
    return data | ({"alignment": links} if options.alignments else {})
