"""The table and the picture of the experiment: scores with intervals, and validation curves."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.pictures import plt, save, tidy
from experiments.tables import interval, mean_curve, table
from experiments.translation.systems import Record

CURVES = (("validation_loss", "validation loss, nats per token"), ("validation_bleu", "validation BLEU, greedy"))
COLORS = ("#1f2933", "#0f766e", "#c2410c", "#d9a441", "#9aa5b1")


def report(name: str, records: Mapping[str, Sequence[Record]]) -> str:
    """Returns the scores and times of all systems as Markdown, with means over seeds and their intervals."""
    every = [record for found in records.values() for record in found]
    names = [score["name"] for score in every[0]["scores"]["test"]]
    columns = [(split, i) for split in ("validation", "test") for i in range(len(names))]
    heads = [f"{names[i]}, {split}" for split, i in columns]
    rows: list[Sequence[object]] = [("method", "seed", *heads, "minutes", "of these compiling")]
    for method, found in records.items():
        values = [[record["scores"][split][i]["value"] for split, i in columns] for record in found]
        for seed, (row, record) in enumerate(zip(values, found, strict=True)):
            seconds = record["seconds"]
            times = (sum(seconds.values()) / 60, seconds.get("compiling", 0.0) / 60)
            label = seed if "averaged" in record else "all"
            rows.append((method, label, *(f"{x:.2f}" for x in (*row, *times))))
        if len(found) > 1:
            rows.append((method, "mean", *map(interval, map(list, zip(*values, strict=True))), "", ""))
    facts = every[-1]["facts"]
    lines = [f"{name}, average of {len(every[0]['averaged'])} checkpoints", "", table(*rows), ""]
    lines += [f"{facts['date']}, {facts['processor']}, jax {facts['jax']}, commit {facts['commit'] or 'unknown'}"]
    lines += sorted({f"- {score['name']}: {score['signature']}" for score in every[0]["scores"]["test"]})
    return "\n".join(lines) + "\n"


def draw(logs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], path: pathlib.Path) -> None:
    """Draws the validation loss and BLEU of trainings by updates, as means over seeds.

    Args:
      logs: the logs of the seeds of each system.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axes, (key, label) in zip(panels, CURVES, strict=True):
        for (name, seeds), color in zip(logs.items(), COLORS, strict=False):
            axes.plot(*mean_curve(seeds, key), label=name, color=color, marker="o", markersize=2.5, linewidth=1.2)
        tidy(axes, xlabel="update", ylabel=label)
    panels[0].legend(frameon=False)
    save(figure, path)
