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

from jaxformer.inspection.attention_maps import Map

INK, ACCENT, GRID = "#1f2933", "#c2410c", "#d9dee4"


def attention_map(found: Map, path: pathlib.Path, *, title: str | None = None) -> pathlib.Path:
    """A map with the source's words across and the target's down; each row's strongest place is marked."""
    rows, columns = found.weights.shape
    figure, axes = plt.subplots(figsize=(1.8 + 0.42 * columns, 1.6 + 0.36 * rows), layout="constrained")
    image = axes.imshow(found.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    best = found.weights.argmax(1)
    axes.scatter(best, np.arange(rows), s=14, color=ACCENT, zorder=3)
    axes.set_xticks(range(columns), found.source, rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(rows), found.target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=GRID, linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, colors=INK)
    bar.set_label("attention weight", size=8, color=INK)
    if title:
        axes.set_title(title, color=INK, size=11, pad=12)
    return _save(figure, path)


def loss_curves(log: Iterable[Mapping[str, Any]], path: pathlib.Path, *, title: str = "") -> pathlib.Path:
    """Training and validation loss over steps, and BLEU where the log has it."""
    entries = list(log)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    steps, losses = _series(entries, "loss")
    if len(steps):
        axes.plot(steps, losses, color=GRID, linewidth=0.8)
        axes.plot(steps, _smooth(losses), color=INK, linewidth=1.5, label="training (smoothed labels, dropout)")
    checked, values = _series(entries, "validation_loss")
    if len(checked):
        axes.plot(checked, values, color=ACCENT, linewidth=1.5, marker="o", markersize=3, label="validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a token)")
    scored, bleu = _series(entries, "validation_bleu")
    if len(scored):
        right = axes.twinx()
        right.plot(scored, bleu, color="#0f766e", linewidth=1.2, linestyle="--", label="validation BLEU (greedy)")
        right.set_ylabel("BLEU")
        right.set_ylim(0, None)
        right.spines[["top"]].set_visible(False)
        axes.plot([], [], color="#0f766e", linestyle="--", label="validation BLEU (greedy)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="center right")
    axes.set_title(title, color=INK, size=11)
    return _save(figure, path)


def _series(entries: list[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(entry["step"], entry[name]) for entry in entries if entry.get(name) is not None]
    return tuple(np.array(pairs, float).reshape(-1, 2).T)


def _smooth(values: np.ndarray) -> np.ndarray:
    """A running mean over the last fiftieth of the run."""
    width = max(1, len(values) // 50)
    total = np.cumsum(np.concatenate([[0.0], values]))
    start = np.maximum(np.arange(1, len(values) + 1) - width, 0)
    stop = np.arange(1, len(values) + 1)
    return (total[stop] - total[start]) / (stop - start)


def _save(figure: Any, path: pathlib.Path) -> pathlib.Path:
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    figure.savefig(temporary, dpi=160)
    plt.close(figure)
    os.replace(temporary, path)
    return path
