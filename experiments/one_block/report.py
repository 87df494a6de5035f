"""The table of the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.tables import percent, table


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
            percent(record.get("between")),
            percent(record.get("next")),
            percent(record.get("known trigrams")),
            f"{record['bleu']:.1f}" if "bleu" in record else "",
            record["loses"],
        )
        for record in results["families"]
    ]
    written = [f"{record['name']}: {' / '.join(map(repr, record['examples']))}" for record in results["families"]]
    truth = "; ".join(f"{name} {percent(share)}" for name, share in results["known trigrams"].items())
    return f"{table(head, *rows)}\n\nknown trigrams: {truth}\n\n```\n" + "\n".join(written) + "\n```"
