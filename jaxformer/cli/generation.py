"""The commands that print the texts of a search: ``translate``, ``generate`` and ``caption``."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.command import SHORT, Image, OutputFile, Picture, Text, command, option, refuse, word
from jaxformer.cli.output import put, say_programs, texts
from jaxformer.cli.predictors import FROM, TO, Inputs, SearchOptions, configured, directed, load_ensemble

if TYPE_CHECKING:
    import numpy as np

    from jaxformer.tasks.captioning import ImageCaptioner
    from jaxformer.tasks.translation import Translator

MOST = 16
"""The maximum number of images in one picture."""


@dataclasses.dataclass(frozen=True)
class Translate(Inputs, SearchOptions):
    """Translates sentences: arguments, a file, or standard input line by line.

    examples:
      jaxformer translate runs/demo "The old man does not see the white house."
      jaxformer translate runs/en-de --file test.en --out test.de
      jaxformer translate runs/en-de --n-best 3 --beam-size 8 "A dog runs."
      jaxformer translate runs/en-de --sample --top-p .9 --seed 1 "A dog runs."
      jaxformer translate runs/en-de --file test.en --mbr 32 --json
      jaxformer translate runs/many --to de "A dog runs."  # a run with data.tags
      jaxformer translate runs/nllb --from eng_Latn --to deu_Latn "A dog runs."
      jaxformer translate runs/en-de --forbid Hund,Katze "A dog runs."
      jaxformer translate runs/one "A dog runs." --ensemble runs/two runs/three
      echo "A dog runs." | jaxformer translate runs/en-de  # line by line, as they come
    """

    mesh: str = option("The device mesh; default: all devices share the sentences.", "")
    to: str = option(TO, "")
    from_: str = option(FROM, "")
    prefix: Text = option("The beginning of each translation.", "")
    alignments: bool = option("Print word links, such as 0-0 1-2, after each text.", False)


@command
def translate(args: Translate, settings: list[str]) -> int:
    """Prints the translations of arguments, of a file, or of standard input."""
    config = configured(args, settings)
    from jaxformer.cli.lines import batches
    from jaxformer.tasks.translation import Translator

    translator = directed(load_ensemble(args, config), args.to, args.from_)
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
    links: Iterator[Sequence[tuple[int, int]]] = iter(())
    if args.alignments:
        pairs = [(text, c.text) for text, best in zip(sentences, candidates, strict=True) for c in best]
        links = iter(translator.alignments([source for source, _ in pairs], [target for _, target in pairs]))
    for number, text, best in zip(numbers, sentences, candidates, strict=True):
        own = [link for _, link in zip(best, links, strict=False)]  # none without --alignments
        more = [{"alignment": " ".join(f"{s}-{t}" for s, t in link)} for link in own]
        source = {"source": text}
        yield from texts(number, source, best, args, translator.tokenizer, name="translations", more=more)


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
def generate(args: Generate, settings: list[str]) -> int:
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
                data = {"prompt": prompt}
                yield from texts(number, data, best, args, generator.tokenizer, name="continuations")

    put(lines(), args.out)
    if not args.inputs:
        say_programs(generator.programs)
    return 0


@dataclasses.dataclass(frozen=True)
class Caption(Inputs, SearchOptions):
    """Describes images.

    examples:
      jaxformer caption runs/boxes one.png two.png
      jaxformer caption runs/boxes one.png --n-best 3 --scores
      jaxformer caption runs/boxes one.png --picture sheet.png
      jaxformer caption runs/boxes --file names.txt --out captions.txt

    An image of another size than the model's is scaled to cover that size, and center-cropped. --picture draws each
    image once for each word of its best caption, overlaid with the attention of that word. Attention shows where a
    model looked, not why.
    """

    inputs: tuple[Image, ...] = word("Names of image files.", ())
    mesh: str = option("The device mesh; default: all devices share the images.", "")
    picture: Picture | None = option(
        f"A picture (.png, .svg or .pdf) of the attention of each word, for the first {MOST} images."
    )


@command
def caption(args: Caption, settings: list[str]) -> int:
    """Prints the captions of images, named by arguments or by the lines of a file."""
    refuse((not args.inputs and not args.file, "give the names of images, or --file"))
    config = configured(args, settings)
    from jaxformer.cli import runtime
    from jaxformer.cli.lines import image_names
    from jaxformer.tasks.captioning import ImageCaptioner
    from jaxformer.training.progress import Count

    captioner = load_ensemble(args, config)
    assert isinstance(captioner, ImageCaptioner)
    names = image_names(args.file) if args.file else args.inputs
    images = captioner.read_all(names)
    candidates = captioner.candidates(images, n_best=args.n_best, progress=Count(len(names), "images", runtime.say))
    if args.picture and names:
        _draw(captioner, images[:MOST], [best[0].text for best in candidates[:MOST]], names[:MOST], args.picture)
    lines = (
        line
        for number, (name, best) in enumerate(zip(names, candidates, strict=True), 1)
        for line in texts(number, {"image": name}, best, args, captioner.tokenizer, name="captions")
    )
    put(lines, args.out)
    if args.file:
        say_programs(captioner.programs)
    return 0


def _draw(
    captioner: ImageCaptioner, images: np.ndarray, captions: Sequence[str], names: Sequence[str], path: pathlib.Path
) -> None:
    from jaxformer.inspection import plots

    titles = [pathlib.Path(name).name for name in names]
    maps = captioner.attention_maps(images, captions)
    plots.save(plots.caption_sheet(list(images), maps, grid=captioner.net.config.image.grid_size, titles=titles), path)
