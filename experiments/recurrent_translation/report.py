"""The report: tables and pictures of the available records."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import command
from experiments.recurrent_translation import drawing
from experiments.recurrent_translation.grid import Scale
from experiments.recurrent_translation.measures import bins, compare, steps_to
from experiments.tables import table

EDGES = (10, 15, 20, 30, 40, 50, 60)
"""The lengths, in words, between the bins of BLEU."""

Records = Mapping[str, Mapping[str, Any]]


def report(
    records: Records, out: pathlib.Path, sizes: Mapping[str, Sequence[int]], initial: Mapping[str, Any], scale: Scale
) -> str:
    """Writes ``results.json`` and the pictures, and returns the tables.

    Args:
      records: the record of each finished cell by its name.
      sizes: by corpus, the number of pairs that each row of its test joins.
      initial: the gradients of initialized cells.
    """
    derived: dict[str, Any] = {"gradients": _distances(initial)}
    parts = [_trainings(records), _section("Gradient norm by distance", _gradient_table(initial))]
    trained = {f"{r['cell']}, trained, {r['corpus']}": r["gradients"] for r in _own(records) if r["kind"] == "fixed"}
    drawing.gradients(initial, trained, out / "pictures" / "gradient-norms.png")
    for corpus in dict.fromkeys(record["corpus"] for record in _own(records)):
        chosen = {r["kind"]: r for r in _own(records) if r["corpus"] == corpus and r["cell"] in ("lstm", "-")}
        drawing.curves(chosen, out / "pictures" / f"curves-{corpus.replace(' ', '-')}.png")
        derived[f"{corpus} time"] = times = _times(chosen)
        parts.append(_section(f"{corpus}: time to equal quality", _time_table(times)))
        if corpus in sizes:
            for name, found in _by_length(chosen, records, out / "hypotheses", sizes[corpus], scale).items():
                derived[f"{corpus} by {name}"] = found
                picture = out / "pictures" / f"bleu-{corpus}-by-{name.split()[0]}.png"
                drawing.scores_by_length(found, picture, name)
                parts.append(_section(f"{corpus}: BLEU by {name}", _score_table(found)))
    parts += [_section("Alignment error rate on the grammar", _grammar(records)), _translations(records)]
    command.write_results(out / "results.json", {"records": records, "derived": derived})
    return "\n\n".join(part for part in parts if part)


def _section(title: str, text: str) -> str:
    return f"### {title}\n\n{text}" if text else ""


def _own(records: Records) -> list[Mapping[str, Any]]:
    """Returns the record with the lowest validation loss of each model on each corpus, of seed 0."""
    best: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for record in records.values():
        own = record["corpus"], record["kind"], record["cell"]
        if record["seed"] == 0 and (own not in best or record["loss"] < best[own]["loss"]):
            best[own] = record
    return list(best.values())


def _trainings(records: Records) -> str:
    heading = (
        "corpus",
        "model",
        "cell",
        "seed",
        "parameters",
        "rate",
        "steps",
        "loss",
        "BLEU",
        "CPU s/step",
        "minutes",
    )
    rows = [
        (
            *(r["corpus"], r["kind"], r["cell"], r["seed"], f"{r['parameters']:,}", f"{r['rate']:g}", r["steps"]),
            f"{r['loss']:.3f}",
            ", ".join(f"{scores['BLEU']:.2f}" for scores in r["scores"].values()),
            f"{r['cpu seconds of a step']:.3f}",
            r["minutes"],
        )
        for r in records.values()
    ]
    return _section("Trainings", table(heading, *rows)) if rows else ""


def _times(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the steps and processor time in which each model reached the best loss of the worst one."""
    level = max(record["loss"] for record in records.values())
    found = {}
    for kind, record in records.items():
        steps = steps_to(record["curve"], level)
        assert steps is not None, "no loss is above the largest"
        found[kind] = {"level": level, "steps": steps, "cpu seconds": steps * record["cpu seconds of a step"]}
    return found


def _time_table(times: Mapping[str, Mapping[str, float]]) -> str:
    rows = [(k, f"{t['level']:.3f}", f"{t['steps']:.0f}", f"{t['cpu seconds']:.0f}") for k, t in times.items()]
    return table(("model", "validation loss", "steps", "processor seconds"), *rows)


def _by_length(
    chosen: Mapping[str, Mapping[str, Any]], records: Records, folder: pathlib.Path, sizes: Sequence[int], scale: Scale
) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns BLEU by the number of joined sentences and by the words of the source, each by model, and the rows."""
    names = {id(record): name for name, record in records.items()}
    systems = {}
    for kind, record in chosen.items():
        rows = json.loads((folder / f"{names[id(record)]}.json").read_text(encoding="utf-8"))
        systems[kind] = rows["test"]
    joined = {str(size): [i for i, own in enumerate(sizes) if own == size] for size in dict.fromkeys(sizes)}
    cuts = {"joined sentences": joined, "words of the source": bins(next(iter(systems.values())), EDGES)}
    return {
        name: {
            length: compare(systems, indices, samples=scale.samples) | {"rows": len(indices)}
            for length, indices in groups.items()
        }
        for name, groups in cuts.items()
    }


def _score_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns BLEU, half the width of its interval and, in brackets, the relative length of the translations."""
    kinds = [kind for kind in next(iter(found.values())) if kind != "rows"]
    rows = []
    for length, some in found.items():
        cells = []
        for kind in kinds:
            score = some[kind]
            text = f"{score['bleu']:.2f}"
            if "half width" in score:
                text += f" ± {score['half width']:.2f} ({score['length ratio']:.2f})"
            cells.append(text + ("*" if (score.get("p") or 0) > 0.05 else ""))
        rows.append((length, some["rows"], *cells))
    return table(("length", "rows", *kinds), *rows)


def _distances(initial: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns the smallest and the largest norm of the seeds, relative to distance 0, at powers of 2."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, runs in initial.items():
        norms = np.array(runs) / np.array(runs)[:, :1]
        at = [d for d in (1, 2, 4, 8, 16, 32, 64, 96) if d < norms.shape[1]]
        found[name] = {str(d): (float(norms[:, d].min()), float(norms[:, d].max())) for d in at}
    return found


def _gradient_table(initial: Mapping[str, Sequence[Sequence[float]]]) -> str:
    found = _distances(initial)
    rows = [(name, *(f"{low:.1e} to {high:.1e}" for low, high in some.values())) for name, some in found.items()]
    return table(("cell", *next(iter(found.values()))), *rows)


def _grammar(records: Records) -> str:
    rows, diagonal = [], {}
    for r in _own(records):
        if "aer" in r:
            rows.append((r["kind"], *(f"{value:.3f}" for value in r["aer"].values()), r["head"]))
            diagonal = r["diagonal"]
    if not rows:
        return ""
    rows.append(("the diagonal", *(f"{value:.3f}" for value in diagonal.values()), "-"))
    return table(("model", *diagonal, "weights"), *rows)


def _translations(records: Records) -> str:
    rows = [
        (r["corpus"], f"{r['kind']} ({r['cell']})", pair["source"], pair["said"])
        for r in _own(records)
        for pair in r["translations"]
    ]
    return _section("Example sentences", table(("corpus", "model", "source", "translation"), *rows)) if rows else ""
