"""``jaxformer translate``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.command import File, OutputFile, Text, command, option, word
from jaxformer.cli.output import as_columns, as_data, as_json, put, say_programs
from jaxformer.cli.predictors import SearchOptions, configured, load_ensemble
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
      jaxformer translate runs/en-de --forbid Hund,Katze "A dog runs."
      jaxformer translate runs/one "A dog runs." --ensemble runs/two runs/three
      echo "A dog runs." | jaxformer translate runs/en-de  # line by line, as they come
    """

    inputs: tuple[Text, ...] = word("Sentences to translate.", ())
    mesh: str = option("The device mesh; default: all devices share the sentences.", "")
    file: File | None = option("A file of sentences, one per line.")
    out: OutputFile | None = option("The file to write translations to, instead of printing them.")
    prefix: Text = option("The beginning of each translation.", "")
    alignments: bool = option("Print word links, such as 0-0 1-2, after each text.", False)


@command
def main(options: Translate, settings: list[str]) -> int:
    """Prints the translations of arguments, of a file, or of standard input."""
    if options.inputs and options.file:
        raise ConfigError("give sentences or --file, not both")
    config = configured(options, settings)
    from jaxformer.cli.lines import batches
    from jaxformer.tasks.translation import Translator

    translator = load_ensemble(options, config)
    assert isinstance(translator, Translator)
    most = translator.decode.batch_size
    lines = (
        line
        for batch in batches(options.inputs, options.file, most=most)
        for line in _translated(translator, options, *zip(*batch, strict=True))
    )
    put(lines, options.out)
    if not options.inputs:
        say_programs(translator.programs)
    return 0


def _translated(
    translator: Translator, options: Translate, numbers: Sequence[int], sentences: Sequence[str]
) -> Iterator[str]:
    """Yields the lines to print for sentences with consecutive numbers."""
    from jaxformer.cli import runtime
    from jaxformer.training.progress import Count, print_line

    say = functools.partial(print_line, runtime.console())
    candidates = translator.candidates(
        sentences,
        n_best=options.n_best,
        first=numbers[0],
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
