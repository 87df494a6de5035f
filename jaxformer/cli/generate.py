"""``jaxformer generate``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from jaxformer.cli.paths import sentence
from jaxformer.cli.predictors import SETTINGS, add_run_options, configured, load, split_settings

EXAMPLES = """examples:
  jaxformer generate run "To be"
  jaxformer generate run "To be" --decode.temperature 0              the most probable token each time
  jaxformer generate run "ROMEO:" "JULIET:" --decode.max_tokens 500 --decode.seed 1
  echo "To be" | jaxformer generate run                              line by line, as they come
"""


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
    rest, settings = split_settings(arguments)
    options = parser.parse_intermixed_args(rest)
    config = configured(options, settings)
    from jaxformer.cli import runtime
    from jaxformer.cli.lines import standard_input
    from jaxformer.tasks.language_model import TextGenerator
    from jaxformer.training.progress import Count, print_line

    generator = load(options, config, "generate")
    assert isinstance(generator, TextGenerator)
    prompts = [[prompt] for prompt in options.prompts] or ([text] for _, text in standard_input())
    say = functools.partial(print_line, runtime.console())
    for prompt in prompts:
        for text in generator.generate(prompt, progress=Count(generator.decode.max_tokens, "tokens", say)):
            print(text, flush=True)
    return 0
