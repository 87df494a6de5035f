"""The pictures of the report."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.pictures import plt, save, tidy

COLORS = {"fixed": "#9aa5b1", "additive": "#c2410c", "multiplicative": "#0f766e", "transformer": "#1f2933"}
CELLS = {"rnn": "#9aa5b1", "gru": "#c2410c", "lstm": "#0f766e"}
DASHES = ((0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
"""Those of the first, second and third trained cell of a color."""


def scores_by_length(table: Mapping[str, Mapping[str, Mapping[str, float]]], path: pathlib.Path, xlabel: str) -> None:
    """Draws BLEU with its interval for each model (inner key) over lengths (outer key)."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for number, kind in enumerate(k for k in next(iter(table.values())) if k in COLORS):
        x = np.arange(len(table)) + 0.06 * number
        values = [some[kind]["bleu"] for some in table.values()]
        error = [some[kind].get("half width", 0.0) for some in table.values()]
        axes.errorbar(x, values, error, label=kind, color=COLORS[kind], marker="o", markersize=4, capsize=2)
    axes.set_xticks(range(len(table)), list(table))
    axes.set_ylim(0, None)
    _finish(figure, axes, path, xlabel=xlabel, ylabel="BLEU")


def curves(records: Mapping[str, Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws the validation loss of each model over steps, and over processor time."""
    figure, both = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    for kind, record in records.items():
        steps, losses = np.array(record["curve"]).T
        for axes, scale in zip(both, (1.0, record["cpu seconds of a step"]), strict=True):
            axes.plot(steps * scale, losses, label=kind, color=COLORS[kind], marker="o", markersize=3)
    tidy(both[1], xlabel="processor seconds of training steps")
    _finish(figure, both[0], path, xlabel="step", ylabel="validation loss, nats per token")


def gradients(
    initial: Mapping[str, Sequence[Sequence[float]]], trained: Mapping[str, Sequence[float]], path: pathlib.Path
) -> None:
    """Draws gradient norms over the distance: of initialized cells (mean and range of seeds), and of trained ones."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, runs in initial.items():
        norms = np.array(runs) / np.array(runs)[:, :1]
        x = np.arange(norms.shape[1])
        axes.plot(x, _mean(norms), color=CELLS[name], label=f"{name}, initial")
        axes.fill_between(x, norms.min(0), norms.max(0), color=CELLS[name], alpha=0.2, linewidth=0)
    drawn: collections.Counter[str] = collections.Counter()
    for label, norms in trained.items():
        cell = next(name for name in CELLS if label.startswith(name))
        dashes = DASHES[drawn[cell] % len(DASHES)]
        drawn[cell] += 1
        axes.plot(np.array(norms) / norms[0], color=CELLS[cell], linestyle=dashes, label=label)
    axes.set_yscale("log")
    axes.set_ylim(1e-10, 10)
    _finish(figure, axes, path, xlabel="distance to the last step", ylabel="gradient norm, relative to distance 0")


def _mean(norms: np.ndarray) -> np.ndarray:
    """Returns the geometric mean over seeds; 0 where a norm is 0 in float32."""
    with np.errstate(divide="ignore"):
        return np.exp(np.log(norms).mean(0))


def _finish(figure: Any, axes: Any, path: pathlib.Path, **labels: str) -> None:
    tidy(axes, **labels)
    axes.legend(frameon=False, fontsize=9)
    save(figure, path, dpi=130)
