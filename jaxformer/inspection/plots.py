"""Plots, by matplotlib: attention maps, also over images, and loss curves.

Each function returns a figure, which a notebook shows; `save` writes it. The figures need no window or display.
"""

from __future__ import annotations

import functools
import io
import os
import pathlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import matplotlib.font_manager as font_manager
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.text import Text

from jaxformer.files import replacing
from jaxformer.inspection.attention_maps import AttentionMap, AttentionWeights, by_word, display_width, select

DEFAULT_FONT = "DejaVu Sans"
LARGEST_SIDE = 1 << 14
"""Pixels of the longer side of a PNG; matplotlib cannot draw more than 2 ** 16."""

LONGEST_LABEL = 20
"""The number of characters after which a word beside a map is truncated."""

WORDS_ACROSS = 5
"""Words in each row of a sheet of captions."""

Shade = Literal["darker", "brighter"]
COLORS: dict[Shade, str] = {"darker": "Blues", "brighter": "gray"}
"""The color map in which a larger weight is darker, and the one in which it is brighter."""

INK, QUIET, ACCENT, SCORE, GRID = "#1f2933", "#9aa5b1", "#c2410c", "#0f766e", "#d9dee4"


def attention_map(
    attention: AttentionMap, *, title: str | None = None, axes: Axes | None = None, more: Shade = "darker"
) -> Figure:
    """Draws a map with the source's words across and the target's down; each row's strongest weight is marked.

    The color scale ends at the largest weight.

    Args:
      more: "darker" cells for larger weights, or "brighter" ones.
      axes: axes of a figure of your own, to draw on; by default of a new figure.
    """
    rows, columns = attention.weights.shape
    source, target = _labels(attention.source), _labels(attention.target)
    width = 2.2 + 0.42 * columns + 0.15 * _excess(target) + 0.12 * _excess(source)  # the source's slant to the right
    width = max(width, 1.2 + 0.09 * max(map(display_width, (title or "").split("\n"))))
    size = width, 1.6 + 0.36 * rows + 0.12 * _excess(source)
    axes = axes or _figure(size).subplots()
    top = np.clip(np.ceil(attention.weights.max() * 10 - 1e-9) / 10, 0.1, 1.0)  # rounded up to a tenth
    image = _cells(axes, attention.weights, top=float(top), more=more)
    axes.scatter(attention.weights.argmax(1), np.arange(rows), s=14, color=ACCENT, linewidths=0, zorder=3)
    axes.set_xticks(range(columns), source, rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(rows), target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=4, colors=INK, labelsize=10)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02, aspect=24)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, colors=INK)
    bar.set_label("attention weight", size=8, color=INK)
    if title:
        axes.set_title(title, color=INK, size=11, pad=12)
    return _finished(axes, bar.ax)


def head_grid(attention: AttentionWeights, *, more: Shade = "darker") -> Figure:
    """Draws every head of every layer as a small map between words: layers down, heads across, one color scale."""
    layers, heads = attention.weights.shape[:2]
    words = [[by_word(select(attention, layer=layer, head=head)) for head in range(heads)] for layer in range(layers)]
    rows, columns = words[0][0].weights.shape
    source, target = _labels(words[0][0].source), _labels(words[0][0].target)
    cell = 0.13
    size = (
        1.7 + heads * (columns * cell + 0.15) + 0.06 * _excess(target),
        1.5 + layers * (rows * cell + 0.35) + 0.06 * _excess(source),
    )
    figure = _figure(size)
    grid = figure.subplots(layers, heads, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        image = _cells(axes, words[layer][head].weights, top=1.0, more=more)
        axes.set_xticks(range(columns), source if layer == 0 else [], rotation=90)
        axes.set_yticks(range(rows), target if head == 0 else [])
        axes.xaxis.tick_top()
        axes.tick_params(length=0, pad=2, colors=INK, labelsize=6)
        axes.set_xlabel(f"layer {layer}, head {head}", size=7, color=INK, labelpad=3)
    bar = figure.colorbar(image, ax=grid, shrink=0.5, pad=0.01, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=6, colors=INK)
    return _finished(*figure.axes)


def image_maps(
    pictures: Sequence[np.ndarray], maps: Sequence[Mapping[str, np.ndarray]], *, titles: Sequence[str]
) -> Figure:
    """Draws images, uint8 ``[h, w, C]``, one per row, and beside each its maps, overlaid on a gray copy.

    Args:
      maps: by name, weights ``[rows, columns]`` of a grid over the picture; colors reach to each map's largest.
      titles: a title for each picture; it may have several lines.
    """
    names = list(maps[0])
    size = 1.9 * (1 + len(names)) + 0.2, 2.1 * len(pictures) + 0.2
    figure = _figure(size)
    grid = figure.subplots(len(pictures), 1 + len(names), squeeze=False)
    for row, picture, by_name, title in zip(grid, pictures, maps, titles, strict=True):
        _show(row[0], picture, title)
        for axes, name in zip(row[1:], names, strict=True):
            _show(axes, picture, name, by_name[name])
    return _finished(*figure.axes)


def caption_sheet(
    pictures: Sequence[np.ndarray], captions: Sequence[AttentionMap], *, grid: tuple[int, int], titles: Sequence[str]
) -> Figure:
    """Draws each image, uint8 ``[h, w, C]``, and beside it a gray copy for each word, overlaid with its attention.

    Args:
      captions: the weights of each word over the positions of a grid, row by row.
      grid: the rows and columns of the grid.
    """
    height, width = pictures[0].shape[:2]
    across = min(WORDS_ACROSS, max(len(caption.target) for caption in captions))
    down = [-(-len(caption.target) // across) for caption in captions]
    size = 1.9 * (1 + across) + 0.2, (1.9 * height / width + 0.3) * sum(down) + 0.2
    figure = _figure(size)
    rows = figure.subplots(sum(down), 1 + across, squeeze=False)
    for axes in rows.flat:
        axes.set_axis_off()
    first = 0
    for picture, caption, title, number in zip(pictures, captions, titles, down, strict=True):
        _show(rows[first, 0], picture, title)
        places = rows[first : first + number, 1:].flat
        for axes, word, weights in zip(places, _labels(caption.target), caption.weights, strict=False):
            _show(axes, picture, word, weights.reshape(grid))
        first += number
    return _finished(*figure.axes)


def _show(axes: Axes, picture: np.ndarray, title: str, weights: np.ndarray | None = None) -> None:
    """Draws a picture in color or, below weights ``[rows, columns]``, in gray; colors reach to the largest weight."""
    height, width, channels = picture.shape
    colors = picture if channels == 3 else np.repeat(picture, 3, 2)
    if weights is None:
        axes.imshow(colors)
    else:
        axes.imshow(colors.mean(2), cmap="gray", vmin=0, vmax=255)
        over = {"extent": (-0.5, width - 0.5, height - 0.5, -0.5), "vmin": 0, "vmax": weights.max()}
        axes.imshow(weights, cmap="inferno", alpha=0.6, **over)
    axes.set_title("\n".join(_labels(title.split("\n"))), color=INK, size=9)
    axes.set_axis_off()


def loss_curves(log: Iterable[Mapping[str, object]], *, title: str = "", axes: Axes | None = None) -> Figure:
    """Draws the training loss, the validation loss, and the first other validation metric on its own axis.

    Args:
      log: entries with a "step" and some of "loss", "validation_loss" and others that begin with "validation", such as
        `training.logging.read_log` reads from the ``log.jsonl`` of a run.
      axes: axes of a figure of your own, to draw on; by default of a new figure, with the legend below the axes.
    """
    entries, is_new = list(log), axes is None
    axes = axes or _figure((7, 4)).subplots()
    steps, losses = _series(entries, "loss")
    if len(steps):
        axes.plot(steps, losses, color=GRID, linewidth=0.8)
        marker = "o" if len(steps) == 1 else None  # a line through one point would be invisible
        axes.plot(
            steps, _smooth(losses), color=INK, linewidth=1.5, marker=marker, label="training objective, running mean"
        )
    validated, validation = _series(entries, "validation_loss")
    if len(validated):
        axes.plot(validated, validation, color=ACCENT, marker="o", markersize=3, label="validation loss")
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss in nats", color=INK)
    if not (np.concatenate([losses, validation]) < 0).any():  # hard attention subtracts an entropy
        axes.set_ylim(0, None)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    right = []
    named = (name for entry in entries for name in entry if entry[name] is not None and name != "validation_loss")
    if name := next((name for name in named if name.startswith("validation_")), None):
        right = [_right_axis(axes, *_series(entries, name), name=name.removeprefix("validation_"))]
    axes.tick_params(length=0, colors=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    lines = [line for each in (axes, *right) for line in each.get_legend_handles_labels()[0]]
    if lines:
        legend = axes.legend
        if is_new:
            legend = functools.partial(axes.figure.legend, loc="outside lower center", ncols=3)
        legend(handles=lines, frameon=False, fontsize=9, labelcolor=INK)
    axes.set_title(title, color=INK, size=11)
    return _finished(axes, *right)


def intervals(found: Mapping[str, Mapping[str, tuple[Sequence[float], float]]]) -> Figure:
    """Draws a panel for each result: for each row, its values, their mean, and the interval of the mean.

    Args:
      found: by result and row, the values and the half width of the interval; NaN for none.
    """
    rows = list(dict.fromkeys(row for values in found.values() for row in values))
    size = 2.2 * len(found) + 1.2 + 0.09 * max(map(len, rows)), 1.4 + 0.35 * len(rows)
    figure = _figure((max(size[0], 4.5), size[1]))
    panels = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for axes, (name, by_row) in zip(panels, found.items(), strict=True):
        for row, (values, half_width) in by_row.items():
            place = rows.index(row)
            axes.scatter(values, [place] * len(values), s=14, color=QUIET, linewidths=0)
            error = None if np.isnan(half_width) else half_width
            axes.errorbar(np.mean(values), place, xerr=error, color=ACCENT, marker="o", markersize=5, capsize=3)
        axes.set_title("\n".join(textwrap.wrap(name, 24)), color=INK, size=9)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)  # the first row on top
        axes.grid(axis="x", color=GRID, linewidth=0.5)
        axes.tick_params(length=0, colors=INK, labelsize=8)
        axes.spines[:].set_visible(False)
    return _finished(*panels)


def save(figure: Figure, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a figure whole or not at all, in the format of the suffix (PNG, SVG or PDF), and returns its path.

    Missing folders are made. A picture of a long text gets fewer pixels per inch, because matplotlib limits them.

    Raises:
      ValueError: the suffix is of no format.
      OSError: the file cannot be written.
    """
    if not pathlib.Path(path).suffix:  # matplotlib would add one
        raise ValueError(f"the path of a picture must end in .png, .svg or .pdf, got {os.fspath(path)!r}")
    with replacing(path) as temporary:
        _write(figure, temporary, 160)
    return pathlib.Path(path)


def _write(figure: Figure, target: pathlib.Path | io.BytesIO, dpi: float, format: str | None = None) -> None:
    """Writes a figure to a file or stream, by default in the format of the file's suffix."""
    with rc_context({"text.usetex": False}):
        figure.savefig(target, dpi=min(dpi, LARGEST_SIDE / max(figure.get_size_inches())), format=format)


class _Figure(Figure):
    """A figure that notebooks show without pyplot, whose backend stays the user's."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        _write(self, stream, self.dpi, format="png")
        return stream.getvalue()


def _figure(size: tuple[float, float]) -> Figure:
    """Returns an empty figure, which needs no window or display."""
    figure = _Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _right_axis(left: Axes, steps: np.ndarray, values: np.ndarray, *, name: str) -> Axes:
    """Draws a metric on a right-hand axis, which starts at 0 unless there are negative values, and returns it."""
    axes = left.twinx()
    axes.plot(steps, values, color=SCORE, linestyle="--", marker="o", markersize=3, label=f"validation {name}")
    axes.set_ylabel(name, color=SCORE)
    if values.min() >= 0:
        axes.set_ylim(0, None)
    axes.tick_params(length=0, colors=SCORE)
    axes.spines[:].set_visible(False)
    return axes


def _cells(axes: Axes, weights: np.ndarray, *, top: float, more: Shade) -> AxesImage:
    """Draws weights as squares with thin lines between them."""
    image = axes.imshow(weights, cmap=COLORS[more], vmin=0, vmax=top, aspect="auto")
    for axis, size in ((axes.set_yticks, weights.shape[0]), (axes.set_xticks, weights.shape[1])):
        axis(np.arange(size + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=GRID, linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
    return image


def _labels(words: Sequence[str]) -> list[str]:
    """Returns words, truncated to leave room for a map."""
    return [word if len(word) <= LONGEST_LABEL else f"{word[: LONGEST_LABEL - 1]}…" for word in words]


def _excess(labels: Sequence[str]) -> int:
    """Returns the number of letters by which the widest label needs more room than usual words."""
    return max(0, max(map(display_width, labels)) - 10)


def _series(entries: Iterable[Mapping[str, object]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and values of the entries that have a value."""
    chosen = [entry for entry in entries if entry.get(name) is not None]
    return np.array([entry["step"] for entry in chosen], float), np.array([entry[name] for entry in chosen], float)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Returns the mean over a window around each value, a fiftieth of the run wide and shorter at its ends."""
    size = len(values)
    index, half = np.arange(size), size // 100
    start, stop = np.maximum(index - half, 0), np.minimum(index + half + 1, size)
    total = np.concatenate([[0.0], np.cumsum(values)])
    return (total[stop] - total[start]) / (stop - start)


def _finished(*axes: Axes) -> Figure:
    """Returns the figure of axes, whose texts are drawn as they are written, in fonts that hold their characters."""
    figure = axes[0].figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    legends = figure.legends if isinstance(figure, _Figure) else []
    texts = [x for part in (*axes, *legends) for x in part.findobj(Text) if isinstance(x, Text)]
    for text in texts:
        text.set_parse_math(False)  # words and names may hold a "$"
        text.set_usetex(False)  # a matplotlibrc in the working directory could make matplotlib run LaTeX
    _choose_fonts(axes, texts)
    return figure


def _choose_fonts(axes: Sequence[Axes], texts: Sequence[Text]) -> None:
    """Adds the installed fonts that hold the characters of texts; others are replaced by their numbers."""
    missing = {character for text in texts for character in text.get_text()} - {" ", "\n"}
    missing -= _characters(font_manager.findfont(DEFAULT_FONT))
    families = [DEFAULT_FONT]
    for font in font_manager.fontManager.ttflist:
        # "Last Resort" has a placeholder box for every character.
        if not missing or font.name in families or font.name.startswith("Last Resort"):
            continue
        if held := missing & _characters(font.fname):
            families.append(font.name)
            missing -= held
    names = str.maketrans({character: f"U+{ord(character):04X}" for character in missing})
    for axis in [axis for part in axes for axis in (part.xaxis, part.yaxis)]:
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if missing & set("".join(labels)):  # they are written again from the axis
            axis.set_ticklabels(_labels([label.translate(names) for label in labels]))
    for text in texts:
        text.set_text(text.get_text().translate(names))
        text.set_fontfamily(families)


@functools.cache
def _characters(file: str) -> frozenset[str]:
    """Returns the characters that a font holds: none if it was removed and matplotlib's list still has it."""
    return frozenset(map(chr, font_manager.get_font(file).get_charmap())) if os.path.exists(file) else frozenset()
