"""``jaxformer translate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.command import File, OutputFile, Text, command, option, word
from jaxformer.cli.output import as_columns, as_data, as_json, put, say_programs
from jaxformer.cli.predictors import TO, SearchOptions, configured, directed, load_ensemble
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.tasks.translation import Translator


@dataclasses.dataclass(frozen=True)
class Translate(SearchOptions):
    """Translates sentences: arguments, a file, or standard input line by line.

    examples:
      jaxformer translate runs/demo "The old man does not see the white house."
      jaxformer translate runs/en-de --file test.en --out test.de
      jaxformer translate runs/en-de --n-best 3 --beam-size 8 "A dog runs."
      jaxformer translate runs/en-de --sample --top-p .9 --seed 1 "A dog runs."
      jaxformer translate runs/en-de --file test.en --mbr 32 --json
      jaxformer translate runs/many --to de "A dog runs."  # a run with data.tags
      jaxformer translate runs/en-de --forbid Hund,Katze "A dog runs."
      jaxformer translate runs/one "A dog runs." --ensemble runs/two runs/three
      echo "A dog runs." | jaxformer translate runs/en-de  # line by line, as they come
    """

    inputs: tuple[Text, ...] = word("Sentences to translate.", ())
    mesh: str = option("The device mesh; default: all devices share the sentences.", "")
    to: str = option(TO, "")
    file: File | None = option("A file of sentences, one per line.")
    out: OutputFile | None = option("The file to write translations to, instead of printing them.")
    prefix: Text = option("The beginning of each translation.", "")
    alignments: bool = option("Print word links, such as 0-0 1-2, after each text.", False)


@command
def main(args: Translate, settings: list[str]) -> int:
    """Prints the translations of arguments, of a file, or of standard input."""
    if args.inputs and args.file:
        raise ConfigError("give sentences or --file, not both")
    config = configured(args, settings)
    from jaxformer.cli.lines import batches
    from jaxformer.tasks.translation import Translator

    translator = directed(load_ensemble(args, config), args.to)
    assert isinstance(translator, Translator)
    most = translator.decode.batch_size
    lines = (
        line
        for batch in batches(args.inputs, args.file, most=most)
        for line in _translated(translator, args, *zip(*batch, strict=True))
    )
    put(lines, args.out)
    if not args.inputs:
        say_programs(translator.programs)
    return 0


def _translated(
    translator: Translator, args: Translate, numbers: Sequence[int], sentences: Sequence[str]
) -> Iterator[str]:
    """Yields the lines to print for sentences with consecutive numbers."""
    from jaxformer.cli import runtime
    from jaxformer.training.progress import Count

    candidates = translator.candidates(
        sentences,
        n_best=args.n_best,
        first=numbers[0],
        prefixes=[args.prefix] * len(sentences) if args.prefix else None,
        warn=runtime.say,
        progress=Count(len(sentences), "sentences", runtime.say),
    )
    more = [[{}] * len(best) for best in candidates]
    if args.alignments:
        pairs = [(text, c.text) for text, best in zip(sentences, candidates, strict=True) for c in best]
        links = iter(translator.alignments([source for source, _ in pairs], [target for _, target in pairs]))
        more = [[{"alignment": " ".join(f"{s}-{t}" for s, t in next(links))} for _ in best] for best in candidates]
    for number, text, best, columns in zip(numbers, sentences, candidates, more, strict=True):
        if args.json:
            shown = [as_data(c, translator.tokenizer) | column for c, column in zip(best, columns, strict=True)]
            yield as_json({"number": number, "source": text, "translations": shown})
            continue
        for candidate, column in zip(best, columns, strict=True):
            yield as_columns(number, candidate, args, *column.values())
