"""Pictures and tables of the results."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.pictures import plt, save
from experiments.sequence_layers import costs, recall
from experiments.tables import table

COLORS = {
    "recurrent": "#1f2933",
    "convolution": "#c2410c",
    "dilated": "#f59e0b",
    "attention": "#1d4ed8",
    "window": "#0f766e",
    "linear": "#9333ea",
}
MARKS = dict(zip(COLORS, "osDv^P", strict=True))
GRID = "#d9dee4"


def draw_costs(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws six panels by length; dashed lines are the formulas of `costs.TABLE`, moved to meet the last point."""
    lengths = sorted({row["length"] for row in rows})
    panels = [
        ("floating-point operations", lambda row: row["flops"], 0),
        ("products in a row", lambda row: row["in_a_row"], 1),
        ("longest path, in layers or steps", lambda row: row["path"], 2),
        ("memory for the gradient, MB", lambda row: row["gradient_bytes"] / 1e6, None),
        ("forward, ms of one core", lambda row: row["forward_seconds"]["cpu"] * 1e3, None),
        ("with the gradient, ms of one core", lambda row: row["gradient_seconds"]["cpu"] * 1e3, None),
    ]
    figure, grid = plt.subplots(2, 3, figsize=(14, 8), layout="constrained")
    for axes, (title, value, formula) in zip(grid.flat, panels, strict=True):
        for kind in costs.MAKES:
            points = {row["length"]: value(row) for row in rows if row["kind"] == kind}
            values = [points[length] for length in lengths if length in points]
            axes.plot(list(points), values, color=COLORS[kind], marker=MARKS[kind], ms=5, lw=1.6, label=kind)
            if formula is not None and kind in costs.TABLE and points:
                expected = [costs.TABLE[kind][formula](length) for length in lengths]
                scale = points[max(points)] / expected[lengths.index(max(points))]
                axes.plot(lengths, [scale * x for x in expected], color=COLORS[kind], ls="--", lw=0.9, alpha=0.7)
        if title.startswith("memory"):
            dense = {
                row["length"]: row["definition_gradient_bytes"] / 1e6 for row in rows if row["kind"] == "attention"
            }
            style = {"color": COLORS["attention"], "ls": ":", "lw": 1.4}
            axes.plot(list(dense), list(dense.values()), label="attention, all weights held", **style)
            axes.legend(fontsize=8, frameon=False)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_title(title, fontsize=11)
        axes.grid(color=GRID, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].legend(fontsize=8, frameon=False)
    figure.supxlabel("length (dashed: the formula of the table, through the last point)", fontsize=10)
    save(figure, path, dpi=110)


def draw_recall(cases: Mapping[str, Any], distances: Sequence[int], path: pathlib.Path) -> None:
    """Draws accuracy by distance, a panel for each task."""
    figure, grid = plt.subplots(1, len(recall.TASKS), figsize=(12, 4.6), layout="constrained", sharey=True)
    for axes, task in zip(grid.flat, recall.TASKS, strict=True):
        for i, kind in enumerate(recall.BLOCKS):
            values = [100 * cases[f"{task} {kind} {distance}"]["accuracy"] for distance in distances]
            shifted = [distance * 1.03 ** (i - 2.5) for distance in distances]  # equal values stay visible
            axes.plot(shifted, values, color=COLORS[kind], marker=MARKS[kind], ms=6, lw=1.6, label=kind)
        axes.axhline(100 / recall.SYMBOLS, color="#9aa5b1", lw=1, ls=":")
        axes.text(distances[0], 100 / recall.SYMBOLS + 1.5, "guessing", fontsize=8, color="#9aa5b1")
        axes.set_xscale("log", base=2)
        axes.set_xticks(distances, [f"{distance:,}" for distance in distances])
        axes.set_ylim(0, 104)
        axes.set_title({"copy": "copy", "selective": "selective copy"}[task], fontsize=11)
        axes.set_xlabel("distance")
        axes.grid(color=GRID, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    grid.flat[0].set_ylabel("right answers, %")
    grid.flat[-1].legend(fontsize=9, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path, dpi=110)


def costs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a Markdown table of the costs."""
    heading = ("layer", "length", "FLOP", "of the definition", "products in a row", "path", "MB, gradient", "ms")
    lines: list[Sequence[object]] = [(*heading, "ms, gradient")]
    for kind in costs.MAKES:
        for row in sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["length"]):
            times = [f"{row[name]['cpu'] * 1e3:,.1f}" for name in ("forward_seconds", "gradient_seconds")]
            cells = [kind, f"{row['length']:,}", f"{row['flops']:.3g}", f"{row['graph_flops']:.3g}"]
            cells += [f"{row['in_a_row']:,}", f"{row['path']:,}", f"{row['gradient_bytes'] / 1e6:,.1f}", *times]
            lines.append(cells)
    return table(*lines) + "\n"


def recall_table(cases: Mapping[str, Any], distances: Sequence[int]) -> str:
    """Returns a Markdown table of the accuracies, in percent."""
    lines: list[Sequence[object]] = [("task", "layer", "blocks", "D", "parameters", *(f"{d:,}" for d in distances))]
    for task in recall.TASKS:
        for kind, blocks in recall.BLOCKS.items():
            found = [cases[f"{task} {kind} {distance}"] for distance in distances]
            cells = (task, kind, blocks, found[0]["d_model"], f"{found[0]['parameters']:,}")
            lines.append((*cells, *(f"{100 * row['accuracy']:.1f}" for row in found)))
    return table(*lines) + "\n"
