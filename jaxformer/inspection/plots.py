"""Pictures.  matplotlib is imported here and nowhere else."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib

matplotlib.use("Agg")  # pictures are files: no window, no display

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.text import Text

from jaxformer.inspection.attention_maps import Map, PieceMap, by_word, select

SUFFIXES = (".png", ".svg", ".pdf")
"""What a picture's file may be."""
INK, QUIET, ACCENT, SCORE, GRID = "#1f2933", "#9aa5b1", "#c2410c", "#0f766e", "#d9dee4"


def attention_map(found: Map, path: pathlib.Path, *, title: str | None = None) -> pathlib.Path:
    """A map with the source's words across and the target's down; each row's strongest place is marked.

    Written as PNG, SVG or PDF, as the suffix says.  Colors reach to the largest weight there is.
    """
    rows, columns = found.weights.shape
    figure, axes = plt.subplots(figsize=(2.2 + 0.42 * columns, 1.6 + 0.36 * rows), layout="constrained")
    image = _cells(axes, found.weights, top=_ceiling(found.weights))
    axes.scatter(found.weights.argmax(1), np.arange(rows), s=14, color=ACCENT, linewidths=0, zorder=3)
    axes.set_xticks(range(columns), found.source, rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(rows), found.target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=4, colors=INK, labelsize=10)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02, aspect=24)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, colors=INK)
    bar.set_label("attention weight", size=8, color=INK)
    if title:
        axes.set_title(title, color=INK, size=11, pad=12)
    return _save(figure, path)


def head_grid(found: PieceMap, path: pathlib.Path, *, title: str | None = None) -> pathlib.Path:
    """Every head of every layer as a small map between words: layers down, heads across, one scale of colors."""
    layers, heads = found.weights.shape[:2]
    words = [[by_word(select(found, layer=layer, head=head)) for head in range(heads)] for layer in range(layers)]
    rows, columns = words[0][0].weights.shape
    cell = 0.13
    size = (1.7 + heads * (columns * cell + 0.15), 1.5 + layers * (rows * cell + 0.35))
    figure, grid = plt.subplots(layers, heads, figsize=size, squeeze=False, layout="constrained")
    for (layer, head), axes in np.ndenumerate(grid):
        image = _cells(axes, words[layer][head].weights, top=1.0)
        axes.set_xticks(range(columns), words[0][0].source if layer == 0 else [], rotation=90)
        axes.set_yticks(range(rows), words[0][0].target if head == 0 else [])
        axes.xaxis.tick_top()
        axes.tick_params(length=0, pad=2, colors=INK, labelsize=6)
        axes.set_xlabel(f"layer {layer}, head {head}", size=7, color=INK, labelpad=3)
    bar = figure.colorbar(image, ax=grid, shrink=0.5, pad=0.01, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=6, colors=INK)
    if title:
        figure.suptitle(title, color=INK, size=10)
    return _save(figure, path)


def loss_curves(log: Iterable[Mapping[str, Any]], path: pathlib.Path, *, title: str = "") -> pathlib.Path:
    """Training objective and validation loss over steps, and validation BLEU where the log has it."""
    entries = list(log)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    steps, losses = _series(entries, "loss")
    axes.plot(steps, losses, color=GRID, linewidth=0.8)
    axes.plot(steps, _smooth(losses), color=INK, linewidth=1.5, label="training objective, running mean")
    axes.plot(*_series(entries, "validation_loss"), color=ACCENT, marker="o", markersize=3, label="validation loss")
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("nats a token", color=INK)
    axes.set_ylim(0, None)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    scored, bleu = _series(entries, "validation_bleu")
    if len(scored):
        right = axes.twinx()
        right.plot(scored, bleu, color=SCORE, linestyle="--", marker="o", markersize=3)
        right.set_ylabel("BLEU", color=SCORE)
        right.set_ylim(0, 100)
        right.tick_params(length=0, colors=SCORE)
        right.spines[:].set_visible(False)
        axes.plot([], [], color=SCORE, linestyle="--", marker="o", markersize=3, label="validation BLEU")
    axes.tick_params(length=0, colors=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    if len(entries):
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    axes.set_title(title, color=INK, size=11)
    return _save(figure, path)


def _cells(axes: Any, weights: np.ndarray, *, top: float) -> Any:
    """Weights as squares with thin lines between them."""
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=top, aspect="auto")
    for axis, size in ((axes.set_yticks, weights.shape[0]), (axes.set_xticks, weights.shape[1])):
        axis(np.arange(size + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=GRID, linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
    return image


def _ceiling(weights: np.ndarray) -> float:
    """The largest weight, rounded up to a tenth."""
    return min(1.0, max(0.1, float(np.ceil(weights.max() * 10 - 1e-9)) / 10))


def _series(entries: list[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(entry["step"], entry[name]) for entry in entries if entry.get(name) is not None]
    return tuple(np.array(pairs, float).reshape(-1, 2).T)


def _smooth(values: np.ndarray) -> np.ndarray:
    """The mean over a window around each place, a fiftieth of the run wide and cut off at its ends."""
    size = len(values)
    here, half = np.arange(size), size // 100
    start, stop = np.maximum(here - half, 0), np.minimum(here + half + 1, size)
    total = np.concatenate([[0.0], np.cumsum(values)])
    return (total[stop] - total[start]) / (stop - start)


def _save(figure: Any, path: pathlib.Path) -> pathlib.Path:
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # words and names may hold a "$"
    figure.savefig(temporary, dpi=160)
    plt.close(figure)
    os.replace(temporary, path)
    return path
