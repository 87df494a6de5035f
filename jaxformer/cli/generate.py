"""``jaxformer generate``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence

from jaxformer.cli.output import as_columns, as_data, as_json, put, say_programs
from jaxformer.cli.paths import output_file, sentence
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

EXAMPLES = """examples:
  jaxformer generate run "To be"
  jaxformer generate run "To be" --temperature 0  # the most probable token each time
  jaxformer generate run "To be" --beam-size 4 --decode.max_tokens 50
  jaxformer generate run "To be" --mbr 8 --forbid thou,thee
  jaxformer generate run "To be" --ensemble other
  jaxformer generate run "To be" --top-p .9 --n-best 3 --json
  jaxformer generate run "ROMEO:" "JULIET:" --decode.max_tokens 500 --seed 1
  echo "To be" | jaxformer generate run  # line by line, as they come
"""

OPTIONS = tuple(name for name in SHORT if name not in ("--sample", "--min-length"))
"""The short options for text continuation; sampling is the default."""


def main(arguments: Sequence[str]) -> int:
    """Prints each prompt with its continuation."""
    parser = argparse.ArgumentParser(
        prog="jaxformer generate",
        usage="jaxformer generate RUN [PROMPT ...] [options] [--decode.NAME VALUE ...]",
        description="Continues texts with a language model: arguments, or standard input line by line.",
        epilog=SETTINGS + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("prompts", nargs="*", type=sentence, metavar="PROMPT", help="the beginning of a text")
    parser.add_argument("--out", type=output_file, help="the file to write texts to, instead of printing them")
    add_ensemble_option(parser)
    add_search_options(parser, OPTIONS)
    rest, settings = split_settings(arguments, OPTIONS)
    options = parser.parse_intermixed_args(rest)
    config = configured(options, settings)
    from jaxformer.cli import runtime
    from jaxformer.cli.lines import standard_input
    from jaxformer.tasks.config import Sample
    from jaxformer.tasks.language_model import TextGenerator
    from jaxformer.training.progress import Count, print_line

    generator = load_ensemble(options, config)
    assert isinstance(generator, TextGenerator)
    say = functools.partial(print_line, runtime.console())

    def lines() -> Iterator[str]:
        numbered, size = list(enumerate(options.prompts, 1)), generator.batch_size
        given = [numbered[start : start + size] for start in range(0, len(numbered), size)]
        for batch in given or standard_input(size):
            numbers, prompts = zip(*batch, strict=True)
            decode = generator.decode
            number = decode.num_texts(options.n_best) if isinstance(decode.finder, Sample) else 1
            progress = Count(len(prompts) * number * decode.max_tokens, "tokens", say)
            sampling = {"n_best": options.n_best, "first": numbers[0] - 1}
            continued = generator.continuations(prompts, **sampling, warn=say, progress=progress)
            for number, prompt, best in zip(numbers, prompts, continued, strict=True):
                if options.json:
                    shown = [as_data(one, generator.tokenizer) for one in best]
                    yield as_json({"number": number, "prompt": prompt, "continuations": shown})
                    continue
                for one in best:
                    yield as_columns(number, one, options)

    put(lines(), options.out)
    if not options.prompts:
        say_programs(generator.programs)
    return 0
