"""Figures 9.1 to 9.5 of "Self-attention" and `relu_vs_gelu` of "The Transformer Architecture": nonlinearity.

Each function of data returns the arrays that the function after it draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from experiments.pictures import Picture, panels, tidy
from jaxformer import functional as F

Data = dict[str, np.ndarray]

SWITCHES = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
"""The four states of two switches; the light is on in the second and third."""

DEFECTS, GOOD = np.array([[1, 1], [2, 2]], np.float32), np.array([[2.5, 1], [1, 3], [3, 1]], np.float32)
"""Size and weight of five parts: those on the diagonal are defective. The document names (1, 1) and (2.5, 1)."""

INK, ACCENT, SHADE = "#1f2933", "#c2410c", "#dbe7f3"


def network(
    x: np.ndarray, w_1: Sequence[Sequence[float]], b_1: Sequence[float], w_2: Sequence[Sequence[float]]
) -> np.ndarray:
    """Computes ``W_2 ReLU(W_1 x + b_1)`` of each row, with matrices as the document writes them, ``[out, in]``."""
    as_kernel = lambda w: jnp.asarray(w, jnp.float32).T
    return np.asarray(
        F.feed_forward(jnp.asarray(x), as_kernel(w_1), jnp.asarray(b_1, jnp.float32), as_kernel(w_2), None)
    )


def grid(low: float, high: float, size: int) -> np.ndarray:
    """Returns the points ``[size, size, 2]`` of a square, x first."""
    line = np.linspace(low, high, size, dtype=np.float32)
    return np.stack(np.meshgrid(line, line), -1)


def xor() -> Data:
    """Returns the light, the best linear fit of it, and a network of three ReLUs at the switches and on a grid.

    `right` is the share of the four points that straight lines of all directions have on the right side.
    """
    light = np.array([0, 1, 1, 0], np.float32)
    affine = np.c_[SWITCHES, np.ones(4)]
    fit = affine @ np.linalg.lstsq(affine, light, rcond=None)[0]
    angle, offset = np.meshgrid(np.linspace(0, 2 * np.pi, 73), np.linspace(-1.5, 1.5, 61))
    above = SWITCHES @ np.stack([np.cos(angle), np.sin(angle)]).reshape(2, -1) > offset.reshape(-1)
    right = (above == (light == 1)[:, None]).mean(0)
    points = grid(-0.4, 1.4, 91)
    three = lambda x: network(x, [[1, 0], [0, 1], [1, 1]], [0, 0, -1], [[1, 1, -2]])[..., 0]
    return {"light": light, "fit": fit, "right": right, "grid": points, "surface": three(points), "at": three(SWITCHES)}


def draw_xor(data: Data) -> Picture:
    """Draws figure 9.1: a line leaves one of four points on the wrong side, a network separates them."""
    figure, (left, right) = panels(8, 3.9, 1, 2)
    left.plot([-0.4, 0.9], [0.9, -0.4], "--", color=ACCENT)
    left.set_title(f"a straight line: at most {4 * data['right'].max():.0f} of 4 points are right", fontsize=10)
    x, y = np.moveaxis(data["grid"], -1, 0)
    right.contourf(x, y, data["surface"], [0.5, 10], colors=[SHADE])
    right.contour(x, y, data["surface"], [0.5], colors=[ACCENT], linestyles="--")
    right.set_title("three ReLUs: the output is above 0.5 in the band", fontsize=10)
    for axes in (left, right):
        for on, color, name in ((1, "white", "light on"), (0, INK, "light off")):
            some = SWITCHES[data["light"] == on]
            axes.scatter(*some.T, s=90, color=color, edgecolors=INK, label=name, zorder=3)
        axes.set(xticks=[0, 1], yticks=[0, 1], xlim=(-0.4, 1.4), ylim=(-0.4, 1.4), aspect="equal")
        axes.set(xlabel="switch A", ylabel="switch B")
    left.legend(loc="upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def lines() -> Data:
    """Returns 2x and ReLU(2x) from -2 to 2."""
    x = np.linspace(-2, 2, 81, dtype=np.float32)
    return {"x": x, "f": 2 * x, "g": np.asarray(F.relu(2 * jnp.asarray(x)))}


def draw_lines(data: Data) -> Picture:
    """Draws figures 9.2 and 9.3 side by side."""
    figure, both = panels(8, 3.4, 1, 2, sharey=True)
    for axes, name, title in zip(both, "fg", ("f(x) = 2x", "g(x) = ReLU(2x)"), strict=True):
        axes.axhline(0, color="#9aa5b1", lw=0.8)
        axes.axvline(0, color="#9aa5b1", lw=0.8)
        axes.plot(data["x"], data[name], color=ACCENT, lw=2)
        tidy(axes, title=title, xlabel="input x")
    both[0].set_ylabel("output")
    return figure


def density_lift() -> Data:
    """Returns five parts with a third feature, density = weight / size, and two ways to separate them by it.

    Defects have a medium density, so one threshold cannot: `band` holds their densities and those of no good part.
    `plane` is a tilted plane, its normal and its offset: ``normal @ (size, weight, density) > offset`` for good parts.
    """
    lift = lambda parts: np.c_[parts, parts[:, 1] / parts[:, 0]]
    return {
        "defects": lift(DEFECTS),
        "good": lift(GOOD),
        "band": np.array([0.7, 1.6]),
        "plane": np.array([1.6, 0, 1, 4.3]),
    }


def draw_density_lift(data: Data) -> Picture:
    """Draws figure 9.4: the parts by size and weight, and with density, seen along the axis of the weight."""
    figure, (flat, side) = panels(9, 3.9, 1, 2)
    side.axhspan(*data["band"], color=SHADE, lw=0, label="medium density")
    size_factor, _, density_factor, offset = data["plane"]
    size = np.array([0.6, 2.6])
    side.plot(size, (offset - size_factor * size) / density_factor, "--", color=ACCENT, label="a tilted plane")
    for name, color in (("defects", INK), ("good", "white")):
        flat.scatter(*data[name][:, :2].T, s=70, color=color, edgecolors=INK, label=name, zorder=3)
        side.scatter(*data[name][:, ::2].T, s=70, color=color, edgecolors=INK, zorder=3)
        flat.plot(*data[name][:2, :2].T, ":", color=ACCENT)
    flat.set(xlabel="size, mm", ylabel="weight, g", xlim=(0, 3.5), ylim=(0, 3.5))
    side.set(xlabel="size, mm", ylabel="density, g/mm", xlim=(0, 3.5), ylim=(0, 3.5))
    flat.set_title("two features: the segments cross, so no line separates", fontsize=10)
    side.set_title("a third feature: two thresholds or a tilted plane do", fontsize=10)
    flat.legend(frameon=False, fontsize=8, loc="lower left")
    side.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def two_spaces() -> Data:
    """Returns the parts of 9.8.13 before and after its network, and after one that does separate them.

    The printed weights put `line`, Feature B = 1.1, on a straight line of the input; ReLUs of both signs of
    weight - size give the distance from the diagonal.
    """
    printed = [[1, 0], [0, 1], [-0.5, 0.5]], [0, 0, 1.5], [[0.3, 0.2, 0.1], [0.1, 0.1, 0.8]]
    ours = [[1, 0], [-1, 1], [1, -1]], [0, 0, 0], [[1, 0, 0], [0, 1, 1]]
    data = {"defects": DEFECTS, "good": GOOD, "claimed": np.array([[1.3, 1.8], [2.2, 0.5]])}
    for name in ("defects", "good"):
        data[f"{name} printed"] = network(data[name], *printed)
        data[f"{name} ours"] = network(data[name], *ours)
    return data | {"line": np.array([[0.5, 0.1], [3.5, 1.9]])}  # 0.1 s + 0.1 w + 0.8 (1.5 - 0.5 s + 0.5 w) = 1.1


def draw_two_spaces(data: Data) -> Picture:
    """Draws figure 9.5 with the printed weights, where their line leaves a good part above it, and with ours."""
    figure, (before, printed, ours) = panels(12, 3.8, 1, 3)
    for axes, suffix in ((before, ""), (printed, " printed"), (ours, " ours")):
        for name, color in (("defects", INK), ("good", "white")):
            axes.scatter(*data[name + suffix].T, s=70, color=color, edgecolors=INK, label=name, zorder=3)
    before.plot(*data["line"].T, "--", color=ACCENT, label="Feature B = 1.1")
    for found, claimed in zip(("defects printed", "good printed"), data["claimed"], strict=True):
        printed.annotate("", claimed, data[found][0], arrowprops={"arrowstyle": "->", "color": ACCENT, "lw": 0.8})
    printed.scatter(*data["claimed"].T, marker="x", color=ACCENT, label="as the text claims")
    printed.axhline(1.1, ls="--", color=ACCENT)
    ours.axhline(0.25, ls="--", color=ACCENT)
    before.set(xlabel="size, mm", ylabel="weight, g", xlim=(0, 3.5), ylim=(0, 3.6), title="input space")
    printed.set(xlabel="Feature A", ylabel="Feature B", xlim=(0.4, 2.4), ylim=(-0.6, 2.6), title="the printed weights")
    ours.set(xlabel="Feature A: size", ylabel="Feature B: |weight - size|", title="weights that separate")
    ours.set(xlim=(0.5, 3.5), ylim=(-0.2, 2.6))
    before.legend(frameon=False, fontsize=8, loc="upper right")
    printed.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def relu_and_gelu() -> Data:
    """Returns ReLU and GELU at the 200 points of the listing."""
    x = np.linspace(-4, 4, 200, dtype=np.float32)
    return {"x": x, "ReLU": np.asarray(F.relu(jnp.asarray(x))), "GELU": np.asarray(F.gelu(jnp.asarray(x)))}


def draw_relu_and_gelu(data: Data) -> Picture:
    """Draws `relu_vs_gelu.png`."""
    figure, (axes,) = panels(8, 4)
    _cross(axes)
    for name, color in (("ReLU", INK), ("GELU", ACCENT)):
        axes.plot(data["x"], data[name], label=name, lw=2, color=color)
    tidy(axes, xlabel="input", ylabel="output", title="ReLU and GELU")
    axes.legend(frameon=False)
    return figure


def _cross(axes: Axes) -> None:
    """Draws the two axes through 0."""
    axes.axhline(0, color="gray", ls="--", alpha=0.5)
    axes.axvline(0, color="gray", ls="--", alpha=0.5)
