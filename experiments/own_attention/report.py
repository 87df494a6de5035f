"""The tables of the results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tables import table

COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "retrieval": (
        ("accuracy", "right answers", ".1f"),
        ("learned", "steps to 90%", ".0f"),
        ("best", "attention to the answer, best map", ".1f"),
        ("mean", "mean of all maps", ".1f"),
    ),
    "language": (
        ("loss", "nats per character", ".4f"),
        ("keys", "keys in use", ".1f"),
        ("zeros", "weights of exactly 0", ".1f"),
    ),
    "translation": (("bleu", "BLEU", ".1f"), ("chrf", "chrF2", ".1f")),
}
"""The measures of each part: name, heading and format."""
PERCENT = "accuracy", "best", "mean", "zeros"


def tables(results: Mapping[str, Any]) -> str:
    """Returns a table for each part: the mean over the seeds, then the lowest and the highest."""
    return "\n\n".join(_table(part, records) for part, records in results["parts"].items())


def _table(part: str, records: Sequence[Mapping[str, Any]]) -> str:
    columns = COLUMNS[part]
    rows = [[part, "parameters", *(heading for _, heading, _ in columns)]]
    for name in dict.fromkeys(record["attention"] for record in records):
        mine = [record for record in records if record["attention"] == name]
        cells = [_cell([record[key] for record in mine], form, key in PERCENT) for key, _, form in columns]
        rows.append([name, f"{mine[0]['parameters']:,}", *cells])
    return table(*rows)


def _cell(values: Sequence[float], form: str, percent: bool) -> str:
    unit = "%" if percent else ""
    mean, low, high = (f"{x:{form}}{unit}" for x in (statistics.fmean(values), min(values), max(values)))
    return f"{mean} ({low} to {high})"
