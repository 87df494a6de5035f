"""The command ``inspect``: where a model looks, as text, a picture, or a page for the browser."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any, Literal

from jaxformer.cli.command import Page, Picture, Run, Text, command, option, refuse, word
from jaxformer.cli.output import save_besides, shown
from jaxformer.cli.predictors import FROM, TO, RunOptions, configured, directed, load

if TYPE_CHECKING:
    from jaxformer.inspection.attention_maps import AttentionMap, AttentionWeights, Patches
    from jaxformer.inspection.pages import View
    from jaxformer.inspection.plots import Figure
    from jaxformer.tasks.config import TaskConfig

DEFAULT_PICTURE = "attention.png"

SEARCHED = ("translation", "captioning")
"""The tasks whose attention is that of a generated text, which --target replaces."""

IMAGES = ("vision", "captioning")
"""The tasks whose inputs are images."""


@dataclasses.dataclass(frozen=True)
class Inspect(RunOptions):
    """Shows where a model looks: as text and a picture, or with --html as a page for the browser.

    examples:
      jaxformer inspect runs/demo "The old man sees the house." --html page.html  # all layers and heads, to explore
      jaxformer inspect runs/en-de "A dog runs." --target "Ein Hund rennt." --layer 2 --out map.svg
      jaxformer inspect runs/demo "The old man sees the house." --kind encoder.self --mean --table
      jaxformer inspect lm "To be or not to be" --grid --out heads.png
      jaxformer inspect runs/boxes one.png two.png --html boxes.html
      jaxformer inspect runs/demo "A dog runs." --html page.html --against-decode beam_size=1  # or --against RUN
      jaxformer inspect runs/demo --serve  # type sentences in the browser

    Inputs are sentences for a translator, texts for a language model, a masked one or a classifier, and image files for
    vision and captioning. A page is one file, which needs no network; its weights have an error of at most 0.0005.
    Attention shows where a model looked, not why.
    """

    setting_prefix = "--decode."

    inputs: tuple[Text, ...] = word("Texts, or names of image files; several with --html.", ())
    source: Text | None = option("The same as a TEXT.")
    target: Text | None = option("A translation or caption of it; default: the model's own.")
    to: str = option(TO, "")
    from_: str = option(FROM, "")
    kind: Literal["encoder.self", "decoder.self", "decoder.cross", "grid"] | None = option(
        "The attention; default: cross-attention if the model has it."
    )
    layer: int | None = option("A layer, from 0, or -1 for the last; with no --head, the mean of its heads.")
    head: int | None = option(
        "A head, from 0, or -1 for the last; default: of cross-attention the one that aligns most words, else the mean "
        "of the last layer."
    )
    mean: bool = option("The mean of all layers and heads.", False)
    grid: bool = option("Every head of every layer in one picture, --out.", False)
    table: bool = option("Write the weights as numbers, with each row's entropy.", False)
    out: Picture | None = option("The picture (.png, .svg or .pdf); default: RUN/attention.png.")
    html: Page | None = option(
        "Write a page (.html) of all attentions, or of one --layer or --head, instead of text and a picture."
    )
    against: Run | None = option("Another run, whose texts, searches and attention the page shows beside.")
    against_decode: tuple[str, ...] = option(
        "Settings of a second search, to show beside: NAME=VALUE, such as beam_size=1 length_penalty=0.", ()
    )
    exact: bool = option("Put the weights into the page as they are, in twice the space.", False)
    serve: bool = option("Show the page of what you type at an address of this machine only; for trying out.", False)
    port: int = option("The port of --serve; 0 for a free one.", 8765)


@command
def inspect(args: Inspect, settings: list[str]) -> int:
    """Shows where a model looks."""
    inputs = (*args.inputs, *([] if args.source is None else [args.source]))
    _check(args, inputs, settings)
    config = configured(args, settings)
    given = {"--target": args.target is not None, "--against-decode": args.against_decode}
    searched = [*settings, *(name for name, is_given in given.items() if is_given)]
    no_effect = f"{' '.join(searched)} has no effect: a run of {config.task} generates no text for its attention"
    images = f"--serve shows texts, but a run of {config.task} reads images; use --html"
    refuse((searched and config.task not in SEARCHED, no_effect), (args.serve and config.task in IMAGES, images))
    from jaxformer.inspection import pages

    if args.html:
        pages.check_replaceable(args.html)
    other = _other(args, config, settings)
    predictor: Any = directed(load(args, config), args.to, args.from_)
    steps = ", ".join(map(str, predictor.steps))  # none of a converted model
    title = shown(str(args.run)) + f", step {steps}" * bool(steps)
    if args.serve:
        from jaxformer.cli.serving import serve
        from jaxformer.tasks import restore

        check = restore.watch(args.run, args.checkpoint, predictor.steps)
        serve(predictor.view, title=title, port=args.port, check=check)
        return 0
    given = [] if args.target is None else [args.target]
    search = {"search": bool(args.html)} if config.task in SEARCHED else {}
    views = [predictor.view(text, *given, **search) for text in inputs]
    if args.html:
        chosen = {"title": title, "layer": args.layer, "head": args.head, "exact": args.exact}
        if other:
            second: Any = directed(load(*other), args.to, args.from_)
            chosen["against"] = [second.view(text, *given, **search) for text in inputs]
            chosen["names"] = _names(args, settings)
        made = pages.page(views, **chosen)
        print(pages.save(made, args.html))
        return 0
    return _draw(views[0], args)


def _other(args: Inspect, config: TaskConfig, settings: list[str]) -> tuple[Inspect, TaskConfig] | None:
    """Returns the options and the configuration of what is shown beside, if there is any, before a model is loaded."""
    if not (args.against or args.against_decode):
        return None
    options = args
    if args.against:
        options = dataclasses.replace(args, run=args.against, attention=None)
    found = configured(options, [*settings, *(f"--decode.{setting}" for setting in args.against_decode)])
    other_task = f"{args.against} is a run of {found.task}, but {args.run} is one of {config.task}"
    is_same = options.run.resolve() == args.run.resolve() and found == config
    same = "what is shown beside is the same; name another run with --against, or other settings"
    refuse((found.task != config.task, other_task), (is_same, same))
    return options, found


def _names(args: Inspect, settings: list[str]) -> tuple[str, str]:
    """Returns the names of the two that are shown beside each other: runs if there are two, else searches."""
    searches = " ".join(settings) or "as trained", " ".join(args.against_decode)
    if args.against is None:
        return shown(searches[0]), shown(searches[1])
    return shown(str(args.run)), shown(" ".join([str(args.against), *args.against_decode]))


def _check(args: Inspect, inputs: tuple[str, ...], settings: list[str]) -> None:
    """Checks that options agree, before anything heavy is imported."""
    is_page, has_target = args.html or args.serve, args.target is not None
    options = {"--against": args.against, "--against-decode": args.against_decode}
    beside = [name for name, value in options.items() if value]
    searched = [*settings, *(name for name in beside if name == "--against-decode")]
    of_picture = [f"--{name}" for name in ("kind", "mean", "grid", "table", "out") if getattr(args, name)]
    chosen = [f"--{name}" for name in ("layer", "head") if getattr(args, name) is not None]
    of_file = [*chosen, *["--exact"] * args.exact, *["--target"] * has_target]
    refuse(
        (args.serve and (inputs or args.html), "--serve takes its texts from the browser; leave out TEXT and --html"),
        (args.serve and of_file, f"--serve shows all of what is typed; leave out {' '.join(of_file)}"),
        (not inputs and not args.serve, "TEXT is missing"),
        (not all(text.strip() for text in inputs), "a TEXT is empty"),
        (len(inputs) > 1 and not args.html, "several inputs make a page; add --html FILE"),
        (len(inputs) > 1 and has_target, "--target belongs to one TEXT"),
        (searched and has_target, f"with --target there is no search; leave out {' '.join(searched)}"),
        (beside and not args.html, f"{' '.join(beside)} is for a page; add --html FILE"),
        (args.exact and not args.html, "--exact is for a page; add --html FILE"),
        (of_picture and is_page, f"a page has every attention, with tables; leave out {' '.join(of_picture)}"),
        (args.mean and chosen, f"--mean averages all layers and heads; leave out --mean or {' '.join(chosen)}"),
        (args.grid and chosen, f"--grid draws every head of every layer; leave out --grid or {' '.join(chosen)}"),
        (args.grid and args.mean, "--grid draws every head of every layer; leave out --grid or --mean"),
        (args.grid and args.table, "--grid writes no text; leave out --grid or --table"),
        (args.grid and not args.out, "--grid draws a picture; name it with --out FILE"),
    )


def _draw(view: View, args: Inspect) -> int:
    """Prints an attention and saves its picture."""
    from jaxformer.inspection import attention_maps, plots

    kind = args.kind or view.default
    refuse((kind not in view.attentions, f"this model has no {kind}; it has {' and '.join(view.attentions)}"))
    pieces = view.attentions[kind]
    if args.grid:
        refuse((pieces.patches, "--grid draws maps between words; for images, use --html"))
        assert args.out is not None
        print(plots.save(plots.head_grid(pieces), args.out))
        return 0
    layer, head = args.layer, args.head
    if layer is None and head is None and not args.mean and pieces.weights.shape[:2] != (1, 1):  # there is a choice
        layer = len(pieces.weights) - 1
        if kind == "decoder.cross" and not pieces.patches:
            layer, head = attention_maps.most_aligned(pieces)
            print(f"decoder layer {layer}, head {head}, which aligns most words (see --layer, --head, --mean)")
    chosen = attention_maps.select(pieces, layer=layer, head=head)
    title = _title(pieces, kind, layer, head)
    if pieces.patches:
        words, figure = _over_image(chosen, pieces.patches, view.title, title)
        write = attention_maps.as_table if args.table else attention_maps.as_list
    else:
        words = attention_maps.by_word(chosen)
        figure = plots.attention_map(words, title=title)
        write = attention_maps.as_table if args.table else attention_maps.as_text
    print(write(words))
    out = args.out or args.run / DEFAULT_PICTURE
    if args.out:
        plots.save(figure, out)
    elif not save_besides(out, lambda path: plots.save(figure, path)):
        return 0
    print(out)
    return 0


def _over_image(attention: AttentionMap, patches: Patches, name: str, title: str) -> tuple[AttentionMap, Figure]:
    """Returns the map to write, and the figure of the image under it.

    Of attention between positions of the image, it is the row of the class token, or the mean of all rows.
    """
    from jaxformer.inspection import attention_maps, plots

    titles = [f"{pathlib.Path(name).name}\n{title}"]
    if attention.source != attention.target:
        words = attention_maps.by_word(attention)
        return words, plots.caption_sheet([patches.image], [words], grid=patches.grid, titles=titles)
    extra = len(attention.source) - patches.grid[0] * patches.grid[1]
    rows = attention.weights[:extra] if extra else attention.weights.mean(0, keepdims=True)
    label = attention.target[:extra] or ("mean",)
    row = attention_maps.AttentionMap(attention.source[extra:], label, rows[:, extra:])
    maps = {title: row.weights[0].reshape(patches.grid)}
    return attention_maps.by_word(row), plots.image_maps([patches.image], [maps], titles=[pathlib.Path(name).name])


def _title(pieces: AttentionWeights, kind: str, layer: int | None, head: int | None) -> str:
    """Returns a description of a layer and a head; a negative index is shown as the one it means."""
    from jaxformer.tasks.translation.alignment import describe

    chosen = zip((layer, head), pieces.weights.shape, strict=False)
    layer, head = (None if index is None else index % number for index, number in chosen)
    return describe((layer, head), part=kind.partition(".")[0])
