"""The table of the experiment: means over seeds with intervals, and sentences with and without negation."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.classification.corpora import METRIC, WAYS, Cell
from experiments.pictures import plt, save, tidy
from experiments.tables import interval, mean_curve, table

NEGATION = re.compile(r"(?:^|\s)(?:not|n't|never|no|nothing|neither|nor|without|hardly|\w+n't)(?=\s|$)", re.IGNORECASE)
NAMES = {"accuracy": "accuracy", "matthews": "Matthews correlation"}
"""The names of metrics in a record."""
TITLES = {"sst2": "SST-2", "trec": "TREC", "cola": "CoLA", "agnews": "AG News"}
COLORS = ("#0f766e", "#5eaaa3", "#9aa5b1", "#c2410c", "#1f2933", "#d9a441")
"""The color of each of `WAYS` in the picture."""


def report(records: Sequence[tuple[Cell, Mapping[str, Any]]]) -> str:
    """Returns the results as Markdown."""
    rows: list[Sequence[object]] = [("corpus", "way", "metric", "test", "seeds", "seconds each")]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell, record in records:
        groups.setdefault((cell.corpus, cell.way), []).append(record)
    for (corpus, way), found in sorted(groups.items()):
        metric = NAMES[METRIC.get(corpus, "accuracy")]
        seconds = np.mean([record.get("seconds", 0.0) for record in found])
        values = [record[metric] for record in found]
        rows.append((corpus, way, metric, interval(values), len(found), f"{seconds:.0f}"))
    negations: list[Sequence[object]] = [("corpus", "way", "with negation", "without")]
    for (corpus, way), found in sorted(groups.items()):
        if corpus == "sst2":
            both = [by_negation(record["rows"]) for record in found]
            negations.append((corpus, way, *(interval([part[name] for part in both]) for name in (True, False))))
    return f"{table(*rows)}\n\n{table(*negations)}\n"


def summary(records: Sequence[tuple[Cell, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Returns the records by the names of their cells, with the accuracies by negation in place of the texts."""
    found = {}
    for cell, record in records:
        parts = by_negation(record["rows"]) if cell.corpus == "sst2" else {}
        names = {True: "accuracy with negation", False: "accuracy without"}
        metrics = {name: value for name, value in record.items() if name not in ("rows", "settings")}
        found[cell.name] = metrics | {names[part]: value for part, value in parts.items()}
    return found


def draw(logs: Sequence[tuple[Cell, Sequence[Mapping[str, Any]]]], path: pathlib.Path) -> None:
    """Draws the validation metrics of training runs by steps, a panel for each corpus, as means over seeds.

    Args:
      logs: each cell with the entries of its log.
    """
    groups: dict[tuple[str, str], list[Sequence[Mapping[str, Any]]]] = {}
    for cell, log in logs:
        groups.setdefault((cell.corpus, cell.way), []).append(log)
    corpora = [corpus for corpus in TITLES if any(corpus == key[0] for key in groups)]
    figure, grid = plt.subplots(1, len(corpora), figsize=(3.4 * len(corpora), 3.6), squeeze=False, layout="constrained")
    for axes, corpus in zip(grid[0], corpora, strict=True):
        metric = METRIC.get(corpus, "accuracy")
        for way, color in zip(WAYS, COLORS, strict=True):
            steps, means = mean_curve(groups.get((corpus, way), []), f"validation_{metric}")
            if steps:
                axes.plot(steps, means, label=way, color=color, marker="o", markersize=3, linewidth=1.2)
        tidy(axes, title=TITLES[corpus], xlabel="step", ylabel=f"validation {NAMES[metric]}, %")
    handles = {name: line for axes in grid[0] for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(WAYS), frameon=False)
    save(figure, path)


def by_negation(rows: Sequence[Mapping[str, str]]) -> dict[bool, float]:
    """Returns the accuracy, in percent, on sentences with a negation (True) and without (False).

    >>> by_negation([{"text": "not bad", "label": "1", "guess": "0"}, {"text": "good", "label": "1", "guess": "1"}])
    {True: 0.0, False: 100.0}
    """
    found: dict[bool, list[bool]] = {True: [], False: []}
    for row in rows:
        found[bool(NEGATION.search(row["text"]))].append(row["label"] == row["guess"])
    return {name: 100 * float(np.mean(right)) if right else float("nan") for name, right in found.items()}
