"""``jaxformer generate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from jaxformer.cli.command import SHORT, OutputFile, Text, command, option, word
from jaxformer.cli.output import as_columns, as_data, as_json, put, say_programs
from jaxformer.cli.predictors import SearchOptions, configured, load_ensemble


@dataclasses.dataclass(frozen=True)
class Generate(SearchOptions):
    """Continues texts with a language model: arguments, or standard input line by line.

    examples:
      jaxformer generate run "To be"
      jaxformer generate run "To be" --temperature 0  # the most probable token each time
      jaxformer generate run "To be" --beam-size 4 --decode.max_tokens 50
      jaxformer generate run "To be" --mbr 8 --forbid thou,thee
      jaxformer generate run "To be" --ensemble other
      jaxformer generate run "To be" --top-p .9 --n-best 3 --json
      jaxformer generate run "ROMEO:" "JULIET:" --decode.max_tokens 500 --seed 1
      echo "To be" | jaxformer generate run  # line by line, as they come
    """

    short = tuple(name for name in SHORT if name not in ("--sample", "--min-length"))  # sampling is the default

    inputs: tuple[Text, ...] = word("The beginnings of texts.", ())
    out: OutputFile | None = option("The file to write texts to, instead of printing them.")


@command
def main(args: Generate, settings: list[str]) -> int:
    """Prints each prompt with its continuation."""
    config = configured(args, settings)
    from jaxformer.cli import runtime
    from jaxformer.cli.lines import batches
    from jaxformer.tasks.config import Sample
    from jaxformer.tasks.language_model import TextGenerator
    from jaxformer.training.progress import Count

    generator = load_ensemble(args, config)
    assert isinstance(generator, TextGenerator)

    def lines() -> Iterator[str]:
        for batch in batches(args.inputs, most=generator.batch_size, size=generator.batch_size):
            numbers, prompts = zip(*batch, strict=True)
            decode = generator.decode
            number = decode.num_texts(args.n_best) if isinstance(decode.finder, Sample) else 1
            progress = Count(len(prompts) * number * decode.max_tokens, "tokens", runtime.say)
            continued = generator.continuations(
                prompts, n_best=args.n_best, first=numbers[0] - 1, warn=runtime.say, progress=progress
            )
            for number, prompt, best in zip(numbers, prompts, continued, strict=True):
                if args.json:
                    shown = [as_data(one, generator.tokenizer) for one in best]
                    yield as_json({"number": number, "prompt": prompt, "continuations": shown})
                    continue
                for one in best:
                    yield as_columns(number, one, args)

    put(lines(), args.out)
    if not args.inputs:
        say_programs(generator.programs)
    return 0
