"""Figures 17.13 to 17.15 of "Lecture 17: Attention": sinusoidal positions, and the distances of positions by scheme."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from experiments.pictures import Picture, panels, tidy
from jaxformer import functional as F

Data = dict[str, np.ndarray]
COLORS = ("#1f2933", "#c2410c", "#0f766e", "#1d4ed8")


def heat_map(length: int = 100, dim: int = 64) -> Data:
    """Returns sinusoidal vectors ``[length, dim]``."""
    return {"vectors": np.asarray(F.sinusoidal(jnp.arange(length), dim=dim))}


def draw_heat_map(data: Data) -> Picture:
    """Draws figure 17.13: a row for each position; pairs of columns turn more and more slowly to the right."""
    figure, (axes,) = panels(7.5, 4.6)
    image = axes.imshow(data["vectors"], cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    axes.set(xlabel="dimension: sine and cosine of each band in turn", ylabel="position t")
    figure.colorbar(image, ax=axes, label="value", shrink=0.8, ticks=[-1, 0, 1])
    return figure


def sine_and_cosine(size: int = 201) -> Data:
    """Returns a period of both, as dimensions of the first band, and the two angles whose sines are equal."""
    angle, ambiguous = np.linspace(0, 2 * np.pi, size), np.pi * np.array([1, 5]) / 6
    both = lambda angle: np.stack([np.sin(angle), np.cos(angle)], -1)
    return {"angle": angle, "values": both(angle), "ambiguous": ambiguous, "at": both(ambiguous)}


def draw_sine_and_cosine(data: Data) -> Picture:
    """Draws figure 17.14: two angles have one sine, and their cosines differ in sign."""
    figure, (axes, circle) = panels(9, 3.4, 1, 2, gridspec_kw={"width_ratios": [2, 1]})
    for column, (name, color) in enumerate(zip(("sine", "cosine"), COLORS, strict=False)):
        axes.plot(data["angle"], data["values"][:, column], color=color, label=name)
        axes.plot(data["ambiguous"], data["at"][:, column], "o", color=color)
    ticks = np.pi * np.array([0, 1 / 6, 5 / 6, 1, 2])
    axes.set_xticks(ticks, ["0", "π/6", "5π/6", "π", "2π"])
    axes.set_yticks([-1, -0.5, 0, 0.5, 1])
    tidy(axes, xlabel="angle ωt, radians", ylabel="value")
    axes.legend(frameon=False, loc="upper center")
    circle.plot(data["values"][:, 1], data["values"][:, 0], color="#9aa5b1")
    for (sine, cosine), name, side in zip(data["at"], ("π/6", "5π/6"), ("left", "right"), strict=True):
        circle.plot(cosine, sine, "o", color=COLORS[1])
        circle.annotate(name, (cosine, sine), (cosine * 1.12, sine * 1.1), ha=side)
    circle.set(aspect="equal", xlabel="cosine", ylabel="sine", xlim=(-1.6, 1.6), ylim=(-1.25, 1.25))
    return figure


def comparison(length: int = 2048, dim: int = 128, start: int = 512) -> Data:
    """Returns the distance of positions by band, and the similarity of a position to others by scheme.

    `distances` ``[7, dim / 2]`` are the distances on the unit circle of each band after `offsets`, from any position.
    `similarities` ``[3, length]`` are the cosines of the vectors at `start` and elsewhere: of sinusoids, of a new
    learned table, and of the index divided by the length, which is a vector of one number.
    """
    sines = np.asarray(F.sinusoidal(jnp.arange(length), dim=dim), np.float64)
    offsets = np.array([1, 3, 10, 30, 100, 300, 1000])
    bands = (sines[start + offsets] - sines[start]).reshape(len(offsets), -1, 2)
    table = np.random.default_rng(0).standard_normal((length, dim))
    learned = np.asarray(F.learned(jnp.asarray(table, jnp.float32), jnp.arange(length)))
    index = np.asarray(F.normalized_positions(jnp.arange(length), length=length))
    cosine = lambda x: x @ x[start] / np.maximum(np.linalg.norm(x, axis=-1) * np.linalg.norm(x[start]), 1e-9)
    return {
        "offsets": offsets,
        "distances": np.linalg.norm(bands, axis=-1),
        "similarities": np.stack([cosine(sines), cosine(learned), cosine(index)]),
        "start": np.array(start),
    }


def draw_comparison(data: Data) -> Picture:
    """Draws figure 17.15: neighbors differ in fast bands, distant positions in slow ones too; and similarities."""
    figure, (bands, near) = panels(11, 4, 1, 2)
    image = bands.imshow(data["distances"], cmap="Blues", vmin=0, vmax=2, aspect="auto")
    bands.set_yticks(range(len(data["offsets"])), [f"{offset:,}" for offset in data["offsets"]])
    bands.set(xlabel="band k, fast to slow", ylabel="positions apart", title="distance of two positions in each band")
    figure.colorbar(image, ax=bands, label="distance on the unit circle", ticks=[0, 1, 2])
    start, reach = int(data["start"]), 60
    offsets = np.arange(-reach, reach + 1)
    names = ("sinusoidal", "learned, new", "index / length")
    for name, similarity, color in zip(names, data["similarities"], (*COLORS[1:3], "#9aa5b1"), strict=True):
        near.plot(offsets, similarity[start + offsets], color=color, label=name)
    tidy(near, xlabel=f"offset from position {start}", ylabel="cosine similarity", title="similarity of two positions")
    near.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
    return figure
