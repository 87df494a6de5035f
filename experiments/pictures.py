"""Pictures of results: matplotlib without a screen, and one way to make, to finish and to save a figure."""

from __future__ import annotations

import io
import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxformer.files import replacing


class Picture(Figure):
    """A figure that notebooks show as PNG, without pyplot."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png")
        return stream.getvalue()


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Picture, np.ndarray[Any, np.dtype[Any]]]:
    """Returns an empty figure of these inches and the array of its panels, row by row."""
    figure = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options).reshape(-1)


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
