"""The tables and the picture of the experiment: means over seeds with intervals."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from experiments.classification.report import interval
from experiments.vision.cells import MODELS, SHIFTS, Cell
from jaxformer.files import replacing

COLORS = ("#0f766e", "#1f2933", "#c2410c")


def groups(records: Mapping[Cell, Mapping[str, Any]]) -> dict[tuple[str, str, int], list[Mapping[str, Any]]]:
    """Returns the records of each corpus, network and number of images, in order; all images come last."""
    found: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for cell, record in sorted(
        records.items(), key=lambda pair: (pair[0].corpus, pair[0].model, pair[0].number or 1 << 40)
    ):
        found.setdefault((cell.corpus, cell.model, cell.number), []).append(record)
    return found


def report(records: Mapping[Cell, Mapping[str, Any]]) -> str:
    """Returns the results as Markdown."""
    lines = ["| corpus | network | parameters | images | test accuracy | seeds | seconds each |", "|---" * 7 + "|"]
    for (corpus, model, number), found in groups(records).items():
        values = [record["accuracy"] for record in found]
        seconds = sum(record["seconds"] for record in found) / len(found)
        cells = (
            corpus,
            model,
            f"{found[0]['parameters']:,}",
            number or "all",
            interval(values),
            len(found),
            f"{seconds:.0f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        f"| corpus | network | {' | '.join(f'shift {n}' for n in SHIFTS)} |",
        "|---" * (2 + len(SHIFTS)) + "|",
    ]
    for (corpus, model, number), found in groups(records).items():
        if number == 0:
            cells = [interval([record["by_shift"][str(n)] for record in found]) for n in SHIFTS]
            lines.append(f"| {corpus} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(records: Mapping[Cell, Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws accuracy by the number of training images, and by shift, with the least and the largest of the seeds."""
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
        left.set(title=corpus, xlabel="training images", ylabel="test accuracy, %")
        right.set(title=f"{corpus}, all images", xlabel="shift of the test images in pixels", ylabel="test accuracy, %")
        right.set_xticks(SHIFTS)
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    plt.close(figure)


def _line(axes: Axes, x: Sequence[Any], values: Sequence[Sequence[float]], label: str, color: str) -> None:
    middle = np.array([np.mean(row) for row in values])
    reach = np.abs(np.array([[min(row), max(row)] for row in values]).T - middle)
    axes.errorbar(x, middle, yerr=reach, label=label, color=color, marker="o", markersize=4, capsize=3)
