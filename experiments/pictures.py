"""Pictures of results: matplotlib without a screen, and one way to finish and to save a figure."""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxformer.files import replacing


def tidy(axes: Axes, **labels: str) -> None:
    """Labels a panel, with horizontal lines and without a frame."""
    axes.set(**labels)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: pathlib.Path, *, dpi: int = 150) -> None:
    """Writes a figure as PNG, whole or not at all, and closes it."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
    plt.close(figure)
