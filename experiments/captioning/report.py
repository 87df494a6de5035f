"""The tables of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def report(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the results as Markdown: truth and BLEU of all captions, then the attention of the captioners."""
    lines = [
        "| captions | true of the own picture | of other pictures | difference | parsed | BLEU | different | minutes |",
        "|---" * 8 + "|",
    ]
    for name, found in records.items():
        metrics = (found[key] for key in ("own", "shuffled", "difference", "parsed", "bleu"))
        minutes = f"{found['seconds'] / 60:.0f}" if "seconds" in found else ""
        cells = (name, *(f"{metric:.1f}" for metric in metrics), found["different"], minutes)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    trained = {name: found for name, found in records.items() if "entropies" in found}
    classes = sorted({word for found in trained.values() for word in found["entropies"]})
    if trained:
        lines += ["", f"| entropy of attention | {' | '.join(classes)} | distance between words |"]
        lines.append("|---" * (2 + len(classes)) + "|")
    for name, found in trained.items():
        shares = (f"{found['entropies'][word][0]:.3f}" if word in found["entropies"] else "" for word in classes)
        lines.append(f"| {name} | {' | '.join(shares)} | {found['movement']:.3f} |")
    return "\n".join(lines) + "\n"
