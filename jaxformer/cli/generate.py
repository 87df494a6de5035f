"""``jaxformer generate``."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Sequence

from jaxformer.cli.paths import sentence
from jaxformer.cli.predictors import SETTINGS, add_run_options, add_search_options, configured, load, split_settings

EXAMPLES = """examples:
  jaxformer generate run "To be"
  jaxformer generate run "To be" --temperature 0              the most probable token each time
  jaxformer generate run "To be" --top-p .9 --n-best 3 --json
  jaxformer generate run "ROMEO:" "JULIET:" --decode.max_tokens 500 --seed 1
  echo "To be" | jaxformer generate run                       line by line, as they come
"""

SHORT = ("--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--no-repeat")


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
    add_search_options(parser, *SHORT)
    rest, settings = split_settings(arguments, SHORT)
    options = parser.parse_intermixed_args(rest)
    config = configured(options, settings)
    from jaxformer.cli import runtime
    from jaxformer.cli.lines import standard_input
    from jaxformer.tasks.language_model import TextGenerator
    from jaxformer.training.progress import Count, print_line

    generator = load(options, config, "generate")
    assert isinstance(generator, TextGenerator)
    say = functools.partial(print_line, runtime.console())
    numbered = list(enumerate(options.prompts, 1))
    for batch in [[one] for one in numbered] or standard_input(16):
        numbers, prompts = zip(*batch, strict=True)
        progress = Count(len(prompts) * options.n_best * generator.decode.max_tokens, "tokens", say)
        draws = {"n_best": options.n_best, "first": numbers[0] - 1}
        continued = generator.continuations(prompts, **draws, cut=say, progress=progress)
        for number, prompt, best in zip(numbers, prompts, continued, strict=True):
            if options.json:
                shown = [{"text": one.text, "log_prob": one.log_prob} for one in best]
                row = {"number": number, "prompt": prompt, "continuations": shown}
                print(json.dumps(row, ensure_ascii=False), flush=True)
                continue
            for one in best:
                first = [str(number)] if options.n_best > 1 else []
                first += [f"{one.log_prob:.4f}"] if options.n_best > 1 or options.scores else []
                print("\t".join([*first, one.text]), flush=True)
    return 0
