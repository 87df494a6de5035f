"""The table of the experiment: means over seeds with intervals, and sentences with and without negation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments.classification.corpora import METRIC, Cell

NEGATION = re.compile(r"(?:^|\s)(?:not|n't|never|no|nothing|neither|nor|without|hardly|\w+n't)(?=\s|$)", re.IGNORECASE)
NAMES = {"accuracy": "accuracy", "matthews": "Matthews correlation"}
"""The names of figures in a record."""


def report(records: Sequence[tuple[Cell, Mapping[str, Any]]]) -> str:
    """Returns the results as Markdown."""
    lines = ["| corpus | way | figure | test | seeds | seconds each |", "|---|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell, record in records:
        groups.setdefault((cell.corpus, cell.way), []).append(record)
    for (corpus, way), found in sorted(groups.items()):
        figure = NAMES[METRIC.get(corpus, "accuracy")]
        seconds = np.mean([record.get("seconds", 0.0) for record in found])
        values = [record[figure] for record in found]
        lines.append(f"| {corpus} | {way} | {figure} | {interval(values)} | {len(found)} | {seconds:.0f} |")
    lines += ["", "| corpus | way | with negation | without |", "|---|---|---|---|"]
    for (corpus, way), found in sorted(groups.items()):
        if corpus == "sst2":
            both = [by_negation(record["rows"]) for record in found]
            cells = [interval([part[name] for part in both]) for name in (True, False)]
            lines.append(f"| {corpus} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def by_negation(rows: Sequence[Mapping[str, str]]) -> dict[bool, float]:
    """Returns the accuracy, in percent, on sentences with a negation (True) and without (False).

    >>> by_negation([{"text": "not bad", "label": "1", "guess": "0"}, {"text": "good", "label": "1", "guess": "1"}])
    {True: 0.0, False: 100.0}
    """
    found: dict[bool, list[bool]] = {True: [], False: []}
    for row in rows:
        found[bool(NEGATION.search(row["text"]))].append(row["label"] == row["guess"])
    return {name: 100 * float(np.mean(right)) if right else float("nan") for name, right in found.items()}


def interval(values: Sequence[float], *, digits: int = 1) -> str:
    """Returns the mean with the half width of its 95 % interval, by Student's t.

    >>> interval([80.0, 82.0, 84.0]), interval([80.0])
    ('82.0 ± 5.0', '80.0')
    """
    mean = f"{float(np.mean(values)):.{digits}f}"
    return f"{mean} ± {half_width(values):.{digits}f}" if len(values) > 1 else mean


def half_width(values: Sequence[float]) -> float:
    """Returns the half width of the 95 % interval of the mean, by Student's t; NaN for one value.

    >>> round(half_width([80.0, 82.0, 84.0]), 3)
    4.968
    """
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else float("nan")
