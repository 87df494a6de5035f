"""Draws the validation BLEU of every recorded system against its updates.

python -m experiments.translation.picture --out experiments/translation/results/validation-bleu.png
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments import command
from experiments.pictures import panels, save, tidy
from experiments.tables import half_width
from experiments.translation.report import COLORS

RESULTS = pathlib.Path(__file__).parent / "results"
TARGET = 41.83
"""The mean of the published recipe, three seeds of 8,000 updates: see speedrun.md."""
SAMPLED = 1.6
"""Half of the 95% interval of one score (sacrebleu's bootstrap of 1,000 sentences), for records without their own."""
SCORE = "BLEU (lower-cased Moses)"


class Point(NamedTuple):
    """A recorded training: its method, its updates and its validation BLEU with the interval."""

    method: str
    updates: int
    bleu: float
    low: float
    high: float


def recorded(results: pathlib.Path = RESULTS) -> list[Point]:
    """Returns the English-German trainings of all records; updates include those of the runs they started from."""
    points, updates = list[Point](), dict[str, int]()
    for path in sorted(results.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for name, run in record.get("runs", {path.stem: record}).items():
            words = run.get("command") or run.get("facts", {}).get("command", "")
            if not run.keys() & {"scores", "validation"} or re.search("target-language (en|fr)", words):
                continue
            start = re.search(r"--init-from \S*?([\w-]+):", words)
            steps = re.search(r"train\.steps[= ](\d+)", words)
            before = updates.get(start[1], 0) if start else 0
            updates[name] = run.get("updates") or int(steps[1] if steps else 8000) + before
            points.append(Point(run.get("method") or method(words), updates[name], *_score(run)))
    return points


def method(words: str) -> str:
    """Returns the method of a training by its command, for records from before they had it.

    >>> method("jaxformer train multi30k:published --optimizer muon --data.tokens-per-batch 4096 --loss.r-drop 5")
    'Muon, 4,096 tokens, R-Drop'
    """
    parts = ["Muon" if "muon" in words else "Adam, as published"]
    found = {"tokens.per.batch[= ]4096": "4,096 tokens", "r-drop": "R-Drop", "vocab_size=4331": "4,000 merges"}
    parts += [part for pattern, part in found.items() if re.search(pattern, words)]
    return "students, 4,096 tokens" if "--init-from" in words else ", ".join(parts)


def _score(run: Mapping[str, Any]) -> tuple[float, float, float]:
    found = run.get("validation") or run["scores"]["validation"]
    if isinstance(found, Mapping):
        value, between = found[SCORE], None
    else:
        (score,) = (score for score in found if score["name"] == SCORE)
        value, between = score["value"], score.get("interval")
    return value, *(between or (value - SAMPLED, value + SAMPLED))


def draw(points: list[Point], path: pathlib.Path) -> None:
    """Draws one mark for each method and number of updates: the mean of its seeds, or a score with its own interval."""
    figure, (axes,) = panels(8, 4.6)
    names = sorted({point.method for point in points})
    labels = dict(zip(names, names, strict=True))
    for name, updates in sorted({(point.method, point.updates) for point in points}):
        seeds = [point for point in points if (point.method, point.updates) == (name, updates)]
        place, values = names.index(name), [point.bleu for point in seeds]
        mean, (low, high) = float(np.mean(values)), (seeds[0].low, seeds[0].high)
        if len(seeds) > 1:
            low, high = mean - half_width(values), mean + half_width(values)
        style = {"color": COLORS[place % len(COLORS)], "marker": "os^vDP"[place // len(COLORS)], "capsize": 3}
        style |= {"markersize": 7, "elinewidth": 2.5} if len(seeds) > 1 else {"markersize": 5, "elinewidth": 0.7}
        x, errors = updates + 50 * place, [[mean - low], [high - mean]]  # methods of equal updates stand side by side
        axes.errorbar(x, mean, errors, linestyle="", label=labels.pop(name, None), **style)
    axes.axhline(TARGET, color="#9aa5b1", linewidth=1, linestyle="--")
    style = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "fontsize": 8, "ha": "center"}
    axes.annotate(f"the published recipe, {TARGET}", (0.29, TARGET), (0, 3), **style)
    thick = "95% intervals; thick: of the mean of several seeds (Student's t), thin: of one score (bootstrap)"
    axes.set_title(thick, fontsize=8, loc="left")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    tidy(axes, xlabel="updates, with those of the run that it starts from", ylabel="validation BLEU, Moses words")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    save(figure, path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.translation.picture", description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the picture to write")
    draw(recorded(), parser.parse_args(arguments).out)
    return 0


if __name__ == "__main__":
    command.script(main)
