"""``jaxformer caption``."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.command import File, Image, OutputFile, Picture, command, option, word
from jaxformer.cli.output import as_columns, as_data, as_json, put, say_programs
from jaxformer.cli.predictors import SearchOptions, configured, load_ensemble
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from jaxformer.tasks.captioning import ImageCaptioner

MOST = 16
"""The maximum number of images in one picture."""


@dataclasses.dataclass(frozen=True)
class Caption(SearchOptions):
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
    file: File | None = option("A file of image names, one per line.")
    out: OutputFile | None = option("The file to write captions to, instead of printing them.")
    picture: Picture | None = option(
        f"A picture (.png, .svg or .pdf) of the attention of each word, for the first {MOST} images."
    )


@command
def main(args: Caption, settings: list[str]) -> int:
    """Prints the captions of images, named by arguments or by the lines of a file."""
    if bool(args.inputs) == bool(args.file):
        raise ConfigError("give the names of images, or --file")
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

    def lines() -> Iterator[str]:
        for number, (name, best) in enumerate(zip(names, candidates, strict=True), 1):
            if args.json:
                captions = [as_data(candidate, captioner.tokenizer) for candidate in best]
                yield as_json({"number": number, "image": name, "captions": captions})
                continue
            for candidate in best:
                yield as_columns(number, candidate, args)

    put(lines(), args.out)
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
