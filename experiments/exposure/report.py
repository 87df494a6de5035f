"""Tables and pictures of the results."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.pictures import plt, save
from experiments.tables import percent, table

FEWEST = 20
"""Distances with fewer sentences are left out."""
DRAWN = 100
"""Positions with fewer sentences are not drawn."""
REPLACED = {
    "clean": ("right", "#0f766e"),
    "own": ("the model's most probable wrong one", "#c2410c"),
    "random": ("random", "#1f2933"),
}
"""The labels and colors of the words before."""


def tables(results: Mapping[str, Any]) -> str:
    """Returns the tables of the README."""
    exposure, reach = results["exposure"], results["reach"]
    every, late, whole = exposure["all"], exposure["after"], exposure["without error"]
    parts = [
        table(
            ("tokens", "teacher forcing", "free running", "number"),
            ("all", percent(every["teacher"]), percent(every["free"]), f"{every['tokens']:,}"),
            ("after a first error", percent(late["teacher"]), percent(late["free"]), f"{late['tokens']:,}"),
            ("whole sentences", percent(whole["teacher"]), percent(whole["free"]), f"{exposure['sentences']:,}"),
        ),
        table(
            ("the word before is", *(f"{i} after" for i in range(1, len(reach["clean"]) + 1))),
            *((label, *map(percent, reach[name])) for name, (label, _) in REPLACED.items()),
        ),
        table(
            ("distance", "no noun of other gender or number between", "such a noun between"),
            *[
                (distance, *(_share(results["agreement"], distance, attracted) for attracted in (False, True)))
                for distance in sorted({row["distance"] for row in results["agreement"]})
            ],
        ),
        table(
            ("word", "right", "95%", "mean margin, nats", "most frequent answer", "sentences"),
            *[
                (
                    row["probe"],
                    percent(row["right"]),
                    interval(row),
                    f"{row['margin']:.1f}",
                    percent(row["majority"]),
                    row["count"],
                )
                for row in results["ambiguities"]
            ],
        ),
    ]
    return "\n\n".join(parts)


def interval(row: Mapping[str, Any]) -> str:
    """Returns text such as "97.1 to 99.3"."""
    return f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"


def _share(rows: Sequence[Mapping[str, Any]], distance: int, attracted: bool) -> str:
    found = [row for row in rows if (row["distance"], row["attracted"]) == (distance, attracted)]
    return f"{percent(found[0]['right'])} of {found[0]['count']}, {found[0]['margin']:.1f} nats" if found else ""


def draw(results: Mapping[str, Any], folder: pathlib.Path) -> None:
    """Draws exposure.png and agreement.png."""
    exposure, reach = results["exposure"], results["reach"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    shown = int((np.array(exposure["count"]) >= DRAWN).sum())
    positions = np.arange(1, shown + 1)
    for name, label, color in (
        ("teacher", "teacher forcing", "#0f766e"),
        ("free", "free running", "#c2410c"),
        ("whole", "no error so far", "#9aa5b1"),
    ):
        left.plot(positions, exposure[name][:shown], label=label, color=color, clip_on=False)
    left.set(xlabel="position of the token", ylabel="share right", ylim=(None, 1))
    left.legend()
    distances = np.arange(1, len(reach["clean"]) + 1)
    for name, (label, color) in REPLACED.items():
        right.plot(distances, reach[name], label=label, color=color, marker="o", markersize=4, clip_on=False)
    right.set(xlabel="positions after the replaced token", ylabel="share right", ylim=(None, 1))
    right.legend(title="the word before is")
    _save(figure, folder / "exposure.png")

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for attracted, label, color in (
        (False, "no noun of other gender or number between", "#0f766e"),
        (True, "such a noun between", "#c2410c"),
    ):
        rows = [row for row in results["agreement"] if row["attracted"] is attracted]
        x, y = [row["distance"] for row in rows], [row["margin"] for row in rows]
        axes.plot(x, y, label=label, color=color, marker="o", markersize=4)
        wrong = [row for row in rows if row["right"] < 1]
        for row in wrong:
            axes.annotate(percent(row["right"]), (row["distance"], row["margin"]), fontsize=8)
    axes.set(xlabel="words between noun and adjective", ylabel="log-probability above the best wrong form, nats")
    highest = axes.dataLim.y1
    axes.set_ylim(0, 1.1 * highest if np.isfinite(highest) else None)  # few sentences may hold no case
    axes.legend(loc="lower left")
    _save(figure, folder / "agreement.png")


def _save(figure: Any, path: pathlib.Path) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
