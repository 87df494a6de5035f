"""``jaxformer inspect``."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from jaxformer.cli.command import REQUIRED, Picture, Text, command, option
from jaxformer.cli.paths import picture, save_besides
from jaxformer.cli.predictors import RunOptions, configured, load
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
    layer: int | None = option("A decoder layer, from 0, or -1 for the last; with no --head, the mean of its heads.")
    head: int | None = option("A head, from 0, or -1 for the last; default: the one that aligns most words.")
    mean: bool = option("The mean of all layers and heads.", False)
    grid: bool = option("Every head of every layer in one picture.", False)
    table: bool = option("Write the weights as numbers, with each row's entropy.", False)
    out: Picture | None = option("The picture (.png, .svg or .pdf); default: RUN/attention.png.")


@command
def main(options: Inspect, settings: list[str]) -> int:
    """Draws the cross-attention between a sentence and its translation."""
    if not options.source.strip():
        raise ConfigError("--source is empty")
    if settings and options.target is not None:
        raise ConfigError(f"with --target there is no search; leave out {settings[0]}")
    chosen = [f"--{name}" for name in ("layer", "head") if getattr(options, name) is not None]
    others = " and ".join(chosen or ["--mean"])
    if options.mean and chosen:
        raise ConfigError(f"--mean averages all layers and heads; leave out --mean or {others}")
    if options.grid and (chosen or options.mean):
        raise ConfigError(f"--grid draws every head of every layer; leave out --grid or {others}")
    if options.grid and options.table:
        raise ConfigError("--grid draws every head and writes no text; leave out --grid or --table")
    if options.grid and options.out is None:
        options = dataclasses.replace(options, out=_default_picture(options.run))
    config = configured(options, settings)
    from jaxformer.inspection import attention_maps, plots
    from jaxformer.tasks.translation import Translator

    translator = load(options, config)
    assert isinstance(translator, Translator)
    pieces = translator.attention(options.source, options.target)
    out = options.out or options.run / DEFAULT_PICTURE
    if options.grid:
        print(plots.save(plots.head_grid(pieces), out))
        return 0
    layer, head = options.layer, options.head
    if layer is None and head is None and not options.mean:
        layer, head = attention_maps.most_aligned(pieces)
        if pieces.weights.shape[:2] != (1, 1):  # there is a choice
            print(f"decoder layer {layer}, head {head}, which aligns most words (see --layer, --head, --mean)")
    words = attention_maps.by_word(attention_maps.select(pieces, layer=layer, head=head))
    print(attention_maps.as_table(words) if options.table else attention_maps.as_text(words))
    figure = plots.attention_map(words, title=_title(pieces, layer, head))
    if options.out:
        plots.save(figure, out)
    elif not save_besides(out, lambda path: plots.save(figure, path)):
        return 0
    print(out)
    return 0


def _title(pieces: AttentionWeights, layer: int | None, head: int | None) -> str:
    """Returns a description of a layer and a head; a negative index is shown as the one it means."""
    from jaxformer.tasks.translation.alignment import describe

    num_layers, num_heads = pieces.weights.shape[:2]
    return describe((None if layer is None else layer % num_layers, None if head is None else head % num_heads))


def _default_picture(run: pathlib.Path) -> pathlib.Path:
    """Returns the picture of a command that prints nothing else, after checking that it can be written."""
    if (run / DEFAULT_PICTURE).is_symlink():  # in someone else's run, it may point to any of this user's files
        raise ConfigError(f"{run / DEFAULT_PICTURE} is a link; name another picture with --out")
    try:
        return picture(str(run / DEFAULT_PICTURE))
    except ConfigError as error:
        raise ConfigError(f"{error}; name another picture with --out") from error
