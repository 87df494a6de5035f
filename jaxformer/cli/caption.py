"""``jaxformer caption``."""

from __future__ import annotations

import argparse
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.output import as_columns, as_data, as_json, put, say_programs
from jaxformer.cli.paths import local_path, output_file, picture, sentence
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
    import numpy as np

    from jaxformer.tasks.captioning import ImageCaptioner
    from jaxformer.tasks.search import Candidate

EXAMPLES = """examples:
  jaxformer caption runs/boxes one.png two.png
  jaxformer caption runs/boxes one.png --n-best 3 --scores
  jaxformer caption runs/boxes one.png --picture sheet.png
  jaxformer caption runs/boxes --file names.txt --out captions.txt

An image of another size than the model's is scaled to cover that size, and center-cropped. --picture draws each
image once for each word of its best caption, overlaid with the attention of that word. Attention shows where a model
looked, not why.
"""

MOST = 16
"""The maximum number of images in one picture."""


def main(arguments: Sequence[str]) -> int:
    """Prints the captions of images, named by arguments or by the lines of a file."""
    parser = argparse.ArgumentParser(
        prog="jaxformer caption",
        usage="jaxformer caption RUN [IMAGE ...] [options] [--decode.NAME VALUE ...]",
        description="Describes images.",
        epilog=SETTINGS + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("images", nargs="*", type=sentence, metavar="IMAGE", help="names of image files")
    parser.add_argument("--file", type=local_path, help="a file of image names, one per line")
    parser.add_argument("--out", type=output_file, help="the file to write captions to, instead of printing them")
    parser.add_argument(
        "--picture",
        type=picture,
        help=f"a picture (.png, .svg or .pdf) of the attention of each word, for the first {MOST} images",
    )
    add_ensemble_option(parser)
    add_search_options(parser, SHORT)
    rest, settings = split_settings(arguments, SHORT)
    options = parser.parse_intermixed_args(rest)
    if bool(options.images) == bool(options.file):
        parser.error("give the names of images, or --file")
    config = configured(options, settings)
    from jaxformer.cli import runtime
    from jaxformer.cli.lines import image_names
    from jaxformer.tasks.captioning import ImageCaptioner
    from jaxformer.training.progress import Count, print_line

    captioner = load_ensemble(options, config)
    assert isinstance(captioner, ImageCaptioner)
    names = options.images or image_names(options.file)
    images = captioner.read_all(names)
    say = functools.partial(print_line, runtime.console())
    found = captioner.candidates(images, n_best=options.n_best, progress=Count(len(names), "images", say))
    if options.picture and names:
        _draw(captioner, images[:MOST], [best[0].text for best in found[:MOST]], names[:MOST], options.picture)
    rows = enumerate(zip(names, found, strict=True), 1)
    put((line for number, row in rows for line in _lines(captioner, number, *row, options)), options.out)
    if options.file:
        say_programs(captioner.programs)
    return 0


def _draw(
    captioner: ImageCaptioner, images: np.ndarray, captions: Sequence[str], names: Sequence[str], path: pathlib.Path
) -> None:
    from jaxformer.inspection import plots

    titles = [pathlib.Path(name).name for name in names]
    maps = captioner.attention_maps(images, captions)
    plots.save(plots.caption_sheet(list(images), maps, grid=captioner.net.config.image.grid_size, titles=titles), path)


def _lines(
    captioner: ImageCaptioner, number: int, name: str, best: Sequence[Candidate], options: argparse.Namespace
) -> Iterator[str]:
    """Yields the lines to print for an image."""
    if options.json:
        captions = [as_data(candidate, captioner.tokenizer) for candidate in best]
        yield as_json({"number": number, "image": name, "captions": captions})
        return
    for candidate in best:
        yield as_columns(number, candidate, options)
