"""The tables of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.tables import table


def report(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the results as Markdown: truth and BLEU of all captions, then the attention of the captioners."""
    heading = ("captions", "true of the own picture", "of other pictures", "difference", "parsed", "BLEU", "different")
    rows = []
    for name, found in records.items():
        metrics = (f"{found[key]:.1f}" for key in ("own", "shuffled", "difference", "parsed", "bleu"))
        minutes = f"{found['seconds'] / 60:.0f}" if "seconds" in found else ""
        rows.append((name, *metrics, found["different"], minutes))
    tables = [table((*heading, "minutes"), *rows)]
    trained = {name: found for name, found in records.items() if "entropies" in found}
    classes = sorted({word for found in trained.values() for word in found["entropies"]})
    rows = [
        (
            name,
            *(f"{found['entropies'][word][0]:.3f}" if word in found["entropies"] else "" for word in classes),
            f"{found['movement']:.3f}",
        )
        for name, found in trained.items()
    ]
    if rows:
        tables.append(table(("entropy of attention", *classes, "distance between words"), *rows))
    return "\n\n".join(tables) + "\n"
