"""The command ``inspect``: a picture of the attention between a sentence and its translation."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from jaxformer.cli.command import REQUIRED, Picture, Text, command, option, picture
from jaxformer.cli.output import save_besides
from jaxformer.cli.predictors import FROM, TO, RunOptions, configured, directed, load
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.inspection.attention_maps import AttentionWeights

DEFAULT_PICTURE = "attention.png"


@dataclasses.dataclass(frozen=True)
class Inspect(RunOptions):
    """Draws how much each target word attends to each source word, as a picture and as text.

    examples:
      jaxformer inspect runs/demo --source "The agreement on the European Economic Area was signed in August 1992."
      jaxformer inspect runs/en-de --source "A dog runs." --target "Ein Hund rennt." --layer 2 --out map.svg
      jaxformer inspect runs/demo --source "The old man sees the house." --grid --out heads.png
      jaxformer inspect runs/demo --source "The old man sees the house." --mean --table
    """

    setting_prefix = "--decode."

    source: Text = option("A sentence.", REQUIRED)
    target: Text | None = option("A translation of it; default: the model's own.")
    to: str = option(TO, "")
    from_: str = option(FROM, "")
    layer: int | None = option("A decoder layer, from 0, or -1 for the last; with no --head, the mean of its heads.")
    head: int | None = option("A head, from 0, or -1 for the last; default: the one that aligns most words.")
    mean: bool = option("The mean of all layers and heads.", False)
    grid: bool = option("Every head of every layer in one picture.", False)
    table: bool = option("Write the weights as numbers, with each row's entropy.", False)
    out: Picture | None = option("The picture (.png, .svg or .pdf); default: RUN/attention.png.")


@command
def inspect(args: Inspect, settings: list[str]) -> int:
    """Draws the cross-attention between a sentence and its translation."""
    if not args.source.strip():
        raise ConfigError("--source is empty")
    if settings and args.target is not None:
        raise ConfigError(f"with --target there is no search; leave out {settings[0]}")
    chosen = [f"--{name}" for name in ("layer", "head") if getattr(args, name) is not None]
    others = " and ".join(chosen or ["--mean"])
    if args.mean and chosen:
        raise ConfigError(f"--mean averages all layers and heads; leave out --mean or {others}")
    if args.grid and (chosen or args.mean):
        raise ConfigError(f"--grid draws every head of every layer; leave out --grid or {others}")
    if args.grid and args.table:
        raise ConfigError("--grid draws every head and writes no text; leave out --grid or --table")
    if args.grid and args.out is None:
        args = dataclasses.replace(args, out=_default_picture(args.run))
    config = configured(args, settings)
    from jaxformer.inspection import attention_maps, plots
    from jaxformer.tasks.translation import Translator

    translator = directed(load(args, config), args.to, args.from_)
    assert isinstance(translator, Translator)
    pieces = translator.attention(args.source, args.target)
    out = args.out or args.run / DEFAULT_PICTURE
    if args.grid:
        print(plots.save(plots.head_grid(pieces), out))
        return 0
    layer, head = args.layer, args.head
    if layer is None and head is None and not args.mean:
        layer, head = attention_maps.most_aligned(pieces)
        if pieces.weights.shape[:2] != (1, 1):  # there is a choice
            print(f"decoder layer {layer}, head {head}, which aligns most words (see --layer, --head, --mean)")
    words = attention_maps.by_word(attention_maps.select(pieces, layer=layer, head=head))
    print(attention_maps.as_table(words) if args.table else attention_maps.as_text(words))
    figure = plots.attention_map(words, title=_title(pieces, layer, head))
    if args.out:
        plots.save(figure, out)
    elif not save_besides(out, lambda path: plots.save(figure, path)):
        return 0
    print(out)
    return 0


def _title(pieces: AttentionWeights, layer: int | None, head: int | None) -> str:
    """Returns a description of a layer and a head; a negative index is shown as the one it means."""
    from jaxformer.tasks.translation.alignment import describe

    chosen = zip((layer, head), pieces.weights.shape, strict=False)
    layer, head = (None if index is None else index % number for index, number in chosen)
    return describe((layer, head))


def _default_picture(run: pathlib.Path) -> pathlib.Path:
    """Returns the picture of a command that prints nothing else, after checking that it can be written."""
    if (run / DEFAULT_PICTURE).is_symlink():  # in someone else's run, it may point to any of this user's files
        raise ConfigError(f"{run / DEFAULT_PICTURE} is a link; name another picture with --out")
    try:
        return picture(str(run / DEFAULT_PICTURE))
    except ConfigError as error:
        raise ConfigError(f"{error}; name another picture with --out") from error
