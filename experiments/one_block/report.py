"""The table of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def tables(results: Mapping[str, Any]) -> str:
    """Returns the table of the families, and examples of what each of them writes."""
    head = ("family", "mask", "cross-attention", "trained on", "parameters", "loss", "masked word", "next word")
    head = (*head, "known trigrams", "BLEU", "loses")
    rows = [
        (
            record["name"],
            "causal" if record["causal"] else "none",
            "yes" if record["cross"] else "",
            record["goal"],
            f"{record['parameters']:,}",
            f"{record['loss']:.3f}",
            _percent(record.get("between")),
            _percent(record.get("next")),
            _percent(record.get("known trigrams")),
            f"{record['bleu']:.1f}" if "bleu" in record else "",
            record["loses"],
        )
        for record in results["families"]
    ]
    written = [f"{record['name']}: {' / '.join(map(repr, record['examples']))}" for record in results["families"]]
    truth = "; ".join(f"{name} {_percent(share)}" for name, share in results["known trigrams"].items())
    return f"{_table(head, rows)}\n\nknown trigrams: {truth}\n\n```\n" + "\n".join(written) + "\n```"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))
