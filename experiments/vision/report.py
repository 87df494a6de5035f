"""The tables and the picture of the experiment: means over seeds with intervals."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.pictures import plt, save
from experiments.tables import half_width, interval, table
from experiments.vision.cells import MODELS, SHIFTS, SIDE, SIZES, Cell

COLORS = ("#0f766e", "#1f2933", "#c2410c")
TITLES = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
"""The names of the corpora in the picture."""


def groups(records: Mapping[Cell, Mapping[str, Any]]) -> dict[tuple[str, str, int], list[Mapping[str, Any]]]:
    """Returns the records of each corpus, network and number of images, in order; all images come last.

    A corpus of whole digits is one of its own.
    """
    found: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for cell, record in sorted(
        records.items(), key=lambda pair: (pair[0].data, pair[0].model, pair[0].number or 1 << 40)
    ):
        found.setdefault((cell.data, cell.model, cell.number), []).append(record)
    return found


def report(records: Mapping[Cell, Mapping[str, Any]]) -> str:
    """Returns the results as Markdown."""
    rows: list[Sequence[object]] = [
        ("corpus", "network", "parameters", "images", "test accuracy", "seeds", "seconds each")
    ]
    for (corpus, model, number), found in groups(records).items():
        values = [record["accuracy"] for record in found]
        seconds = sum(record["seconds"] for record in found) / len(found)
        size = f"{found[0]['parameters']:,}"
        rows.append((corpus, model, size, number or "all", interval(values), len(found), f"{seconds:.0f}"))
    tables = [table(*rows)]
    for key, columns, word in (("by_shift", SHIFTS, "shift"), ("by_size", SIZES, "size")):
        rows = [
            (corpus, model, *(interval([record[key][str(n)] for record in found]) for n in columns))
            for (corpus, model, number), found in groups(records).items()
            if number == 0 and key in found[0]
        ]
        if rows:
            tables.append(table(("corpus", "network", *(f"{word} {n}" for n in columns)), *rows))
    return "\n\n".join(tables) + "\n"


def draw(records: Mapping[Cell, Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws accuracy by the number of training images, and by shift, as means with 95 % intervals."""
    records = {cell: record for cell, record in records.items() if cell.side == SIDE}
    corpora = sorted({cell.corpus for cell in records})
    figure, grid = plt.subplots(len(corpora), 2, figsize=(10, 4 * len(corpora)), squeeze=False, layout="constrained")
    for (left, right), corpus in zip(grid, corpora, strict=True):
        rows = {key[1:]: found for key, found in groups(records).items() if key[0] == corpus}
        for color, model in zip(COLORS, MODELS, strict=True):
            numbers = {number: found for (name, number), found in rows.items() if name == model}
            if not numbers:
                continue
            labels = [f"{number:,}" if number else "all" for number in numbers]
            _line(left, labels, [[x["accuracy"] for x in found] for found in numbers.values()], model, color)
            if 0 in numbers:
                values = [[x["by_shift"][str(n)] for x in numbers[0]] for n in SHIFTS]
                _line(right, list(SHIFTS), values, model, color)
        left.set(title=TITLES[corpus], xlabel="training images", ylabel="test accuracy, %")
        title, shift = f"{TITLES[corpus]}, all images", "shift of the test images in pixels"
        right.set(title=title, xlabel=shift, ylabel="test accuracy, %")
        right.set_xticks(SHIFTS)
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend()
    save(figure, path)


def _line(axes: Axes, x: Sequence[Any], values: Sequence[Sequence[float]], label: str, color: str) -> None:
    means, reach = [float(np.mean(row)) for row in values], np.array([half_width(row) for row in values])
    bars = None if np.isnan(reach).all() else reach
    axes.errorbar(x, means, yerr=bars, label=label, color=color, marker="o", markersize=4, capsize=3)
