"""Block diagrams of attention in a translator (17.3), the Transformer (17.20) and the modern block (17.22), box by box.

A diagram is a list of columns of boxes. A box has the array that it passes on, so its shape is drawn and not told, and
the last one is the output of the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.patches import FancyBboxPatch

from experiments.figures.attention import random
from experiments.pictures import Picture, panels
from jaxformer import functional as F
from jaxformer import masks, modules, pure

COLORS = {"attention": "#fed7aa", "norm": "#fef9c3", "feed": "#bfdbfe", "vectors": "#fbcfe8", "+": "#e5e7eb"}
"""The color of a box by a part of its name; others are white."""

LINE = "#334155"


@dataclasses.dataclass(frozen=True)
class Box:
    """A box of a diagram.

    Attributes:
      name: what it computes.
      value: the array that leaves it.
      adds: the index, in its column, of the box whose value also enters it (a residual connection); none by default.
      reads: True if the last box of the column on the left also enters it.
    """

    name: str
    value: jax.Array
    adds: int | None = None
    reads: bool = False


Column = list[Box]


def modern_block(seed: int = 0) -> tuple[list[Column], jax.Array]:
    """Returns the boxes of a pre-norm block, and the output of `modules.Block` with the same parameters."""
    block, x = _block(F.pre_norm, cross=False, seed=seed), random(1, 4, 16)
    column = [Box("input", x)]
    _residual(column, "layer norm", "self-attention", block.attention_norm, block.attention, first=True)
    _residual(column, "layer norm", "feed-forward", block.feed_forward_norm, block.feed_forward, first=True)
    return [column], block(x)


def transformer(seed: int = 0) -> tuple[list[Column], jax.Array]:
    """Returns the boxes of an encoder and of a decoder of one layer, and the logits of the same modules as blocks."""
    encoder, decoder = _block(F.post_norm, cross=False, seed=seed), _block(F.post_norm, cross=True, seed=seed + 1)
    table, causal = random(11, 16, seed=2), masks.causal()
    embed = lambda ids: table[ids] + F.sinusoidal(jnp.arange(ids.shape[1]), dim=16)[None]
    source, target = jnp.array([[4, 5, 6]]), jnp.array([[1, 7, 8, 9, 10]])

    left = [Box("source words", source), Box("vectors + positions", embed(source))]
    _residual(left, "layer norm", "self-attention", encoder.attention_norm, encoder.attention)
    _residual(left, "layer norm", "feed-forward", encoder.feed_forward_norm, encoder.feed_forward)
    memory = left[-1].value

    right = [Box("target words, moved by one", target), Box("vectors + positions", embed(target))]
    masked = lambda y: decoder.attention(y, mask=causal)
    _residual(right, "layer norm", "masked self-attention", decoder.attention_norm, masked)
    cross = decoder.cross
    assert cross is not None
    read = lambda y: cross(y, cross.project(memory))
    _residual(right, "layer norm", "cross-attention", decoder.cross_norm, read, reads=True)
    _residual(right, "layer norm", "feed-forward", decoder.feed_forward_norm, decoder.feed_forward)
    right.append(Box("words: logits", right[-1].value @ table.T))
    whole = decoder(embed(target), encoder(embed(source)), mask=causal) @ table.T
    return [left, right], whole


def recurrent_attention(seed: int = 0) -> tuple[list[Column], jax.Array]:
    """Returns the boxes of one step of additive attention over a source, and the context of `F.additive_attention`."""
    draw = [
        random(*shape, seed=seed + i)
        for i, shape in enumerate([(1, 4, 8), (8, 16), (16, 16), (16, 16), (16, 16), (16,)])
    ]
    vectors, into, through, w, u, v = (0.3 * each for each in draw)
    step = lambda h, x: (h := jnp.tanh(x @ into + h @ through), h)
    states = jax.lax.scan(lambda h, x: step(h, x), jnp.zeros((1, 16)), vectors.swapaxes(0, 1))[1].swapaxes(0, 1)
    left = [Box("source words", jnp.arange(4)[None]), Box("vectors", vectors), Box("recurrent encoder", states)]
    state = random(1, 16, seed=9)
    scores = F.additive_similarity(state @ w, states[0] @ u, v)
    weights = jax.nn.softmax(scores)
    context = jnp.einsum("bs,bsd->bd", weights, states)
    right = [
        Box("state before", state),
        Box("scores: additive", scores, reads=True),
        Box("softmax: weights", weights),
        Box("sum: context", context, reads=True),
    ]
    return [left, right], F.additive_attention(state[:, None], states, states, w_query=w, w_key=u, v=v)[0][:, 0]


def _block(arrangement: F.Arrangement, *, cross: bool, seed: int) -> modules.Block:
    net = pure(
        lambda config, rngs: modules.Block(
            modules.SelfAttention(16, 2, rngs=rngs),
            modules.FeedForward(16, rngs=rngs),
            cross=modules.CrossAttention(16, 2, rngs=rngs) if cross else None,
            norm=lambda: modules.LayerNorm(16),
            arrangement=arrangement,
        ),
        None,
    )
    return net.bind(net.init(jax.random.key(seed)))


def _residual(
    column: Column,
    norm_name: str,
    name: str,
    norm: Any,
    sublayer: Callable[[jax.Array], jax.Array],
    *,
    first: bool = False,
    reads: bool = False,
) -> None:
    """Adds the boxes of a sublayer, a sum and a norm, which is the `first` of them or the last."""
    start = len(column) - 1
    x = column[start].value
    if first:
        column.append(Box(norm_name, norm(x)))
    column.append(Box(name, sublayer(column[-1].value), reads=reads))
    column.append(Box("+", x + column[-1].value, adds=start))
    if not first:
        column.append(Box(norm_name, norm(column[-1].value)))


def draw(columns: Sequence[Column]) -> Picture:
    """Draws columns of boxes from the bottom up, with the shape of what leaves each."""
    tallest = max(map(len, columns))
    figure, (axes,) = panels(4.2 * len(columns), 0.68 * tallest)
    axes.set(xlim=(-1.8, 4.2 * len(columns) - 2.5), ylim=(-0.4, tallest))
    axes.axis("off")

    def line(*points: tuple[float, float]) -> None:
        axes.plot(*zip(*points[:-1], strict=True), color=LINE, lw=1)
        axes.annotate(
            "", points[-1], points[-2], arrowprops={"arrowstyle": "-|>", "color": LINE, "shrinkA": 0, "shrinkB": 0}
        )

    for i, column in enumerate(columns):
        x = 4.2 * i
        for y, box in enumerate(column):
            color = next((color for part, color in COLORS.items() if part in box.name), "white")
            shape = "round,pad=0,rounding_size=0.1"
            axes.add_patch(FancyBboxPatch((x - 1.1, y - 0.25), 2.2, 0.5, shape, facecolor=color, edgecolor=LINE))
            axes.text(x, y, box.name, ha="center", va="center", size=9)
            axes.text(
                x + 0.1, y + 0.49, " x ".join(map(str, box.value.shape[1:])), va="center", size=8, color="#64748b"
            )
            if box is not column[-1] or column is columns[-1]:
                line((x, y + 0.25), (x, y + 0.75))
            if box.adds is not None:
                line((x, box.adds + 0.4), (x - 1.4, box.adds + 0.4), (x - 1.4, y), (x - 1.1, y))
            if box.reads:
                top = len(columns[i - 1]) - 0.25
                line((x - 4.2, top - 0.5), (x - 4.2, top), (x - 2.4, top), (x - 2.4, y), (x - 1.1, y))
    return figure
