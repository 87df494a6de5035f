"""Figures of one layer of attention: masks, its queries to outputs, paths, heads, pixels, and maps between words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.pictures import Picture, panels
from jaxformer import functional as F
from jaxformer import masks, modules, pure
from jaxformer.inspection import attention_maps, plots

Data = dict[str, np.ndarray]
ACCENT = "#c2410c"
PADDED = ("The", "cat", "sat", "<pad>", "<pad>")


def random(*shape: int, seed: int = 0) -> jax.Array:
    """Returns random normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def masks_of(length: int = 5, valid: int = 3) -> Data:
    """Returns the causal mask, the padding mask of the first `valid` keys, and both; True is visible."""
    causal, padding = masks.causal(), masks.padding(np.arange(length)[None] < valid)
    by_name = {"causal": causal, "padding": padding, "causal and padding": causal & padding}
    return {name: np.asarray(mask.dense(length, length)[0, 0]) for name, mask in by_name.items()}


def draw_masks(data: Data, words: Sequence[str] = PADDED) -> Picture:
    """Draws masks side by side, with what each adds to the logits in its cells."""
    figure, grid = panels(3.4 * len(data), 3.6, 1, len(data))
    for axes, (name, visible) in zip(grid, data.items(), strict=True):
        axes.imshow(visible, cmap="Blues", vmin=0, vmax=2)
        for (row, column), seen in np.ndenumerate(visible):
            axes.text(column, row, "0" if seen else "-∞", ha="center", va="center", size=9)
        axes.set_xticks(range(visible.shape[1]), words, rotation=45)
        axes.set_yticks(range(visible.shape[0]), words)
        axes.set(title=name, xlabel="key", ylabel="query")
        axes.tick_params(length=0)
    return figure


def layer(query: jax.Array, key: jax.Array, value: jax.Array, mask: masks.Mask | None = None) -> Data:
    """Returns the parts of one layer: queries, keys, logits, weights, values and outputs, a row for each vector."""
    seen = []
    output, weights = F.attention_head(query, key, value, mask=mask, score=lambda logits: seen.append(logits) or logits)
    visible = True if mask is None else mask.dense(query.shape[0], key.shape[0])[0, 0]
    logits = jnp.where(visible, seen[0], -jnp.inf)
    parts = {"queries": query, "keys": key, "logits": logits, "weights": weights, "values": value, "outputs": output}
    return {name: np.asarray(part) for name, part in parts.items()}


def draw_layer(data: Data, *, queries: Sequence[str] = (), inputs: Sequence[str] = (), marked: int = 0) -> Picture:
    """Draws the parts of a layer as the lecture does, transposed: a column for each query, its parts below each other.

    Args:
      queries, inputs: names of the columns and rows; by default Q1, Q2, ... and X1, X2, ...
      marked: the column with a frame.
    """
    num_queries, num_inputs = data["logits"].shape
    queries = queries or [f"Q{i}" for i in range(1, num_queries + 1)]
    inputs = inputs or [f"X{i}" for i in range(1, num_inputs + 1)]
    sizes = [data["keys"].shape[1], num_queries, num_queries, data["values"].shape[1]]
    heights = [max(data["queries"].shape[1], data["outputs"].shape[1]), num_inputs]
    ratios = {"width_ratios": sizes, "height_ratios": heights}
    figure, grid = panels(3 + 0.62 * sum(sizes), 2 + 0.5 * sum(heights), 2, 4, gridspec_kw=ratios)
    frame = {"fill": False, "edgecolor": ACCENT, "lw": 2, "clip_on": False, "zorder": 3}
    dims = lambda size: [f"dim {i}" for i in range(1, size + 1)]
    grid[0].set_axis_off()
    grid[3].set_axis_off()
    shown = ("queries", "outputs", "keys", "logits", "weights", "values")
    for axes, name in zip(grid[[1, 2, 4, 5, 6, 7]], shown, strict=True):
        part, title = (data[name], name) if name in ("keys", "values") else (data[name].T, f"{name}, transposed")
        _numbers(axes, part, "Blues" if name == "weights" else "PuOr")
        across = dims(part.shape[1]) if name in ("keys", "values") else queries
        down = inputs if name not in ("queries", "outputs") else dims(part.shape[0])
        axes.set_xticks(range(part.shape[1]), across)
        axes.set_yticks(range(part.shape[0]), down)
        axes.set_title(title, fontsize=9)
        if name not in ("keys", "values"):
            axes.add_patch(Rectangle((marked - 0.5, -0.5), 1, part.shape[0], **frame))
    return figure


def _numbers(axes: Axes, part: np.ndarray, colors: str) -> None:
    """Draws a matrix with its numbers; colors reach to its largest absolute number."""
    finite = np.where(np.isfinite(part), part, 0)
    top = 2 * max(np.abs(finite).max(), 1e-9)  # lighter, so that numbers can be read
    axes.imshow(finite, cmap=colors, vmin=0 if colors == "Blues" else -top, vmax=top, aspect="auto")
    for (row, column), number in np.ndenumerate(part):
        text = f"{number:.2f}" if np.isfinite(number) else "-∞"
        axes.text(column, row, text, ha="center", va="center", size=8)
    axes.tick_params(length=0, labelsize=8)


def cross_layer() -> Data:
    """Returns the layer of figure 17.10: four queries and three inputs, with random matrices."""
    inputs = random(3, 4, seed=1)
    return layer(random(4, 3, seed=2), inputs @ random(4, 3, seed=3), inputs @ random(4, 2, seed=4))


def worked_layer(order: Sequence[int] = (0, 1, 2), mask: masks.Mask | None = None) -> Data:
    """Returns the layer of figure 17.11, with the inputs and matrices of the worked example of "Self-attention" 9.3.

    Args:
      order: the order of the inputs; figure 17.12 reverses them.
    """
    x = jnp.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]], jnp.float32)[jnp.array(order)]
    w_query = jnp.array([[1, 0], [0, 1], [1, 0], [0, 1]], jnp.float32)
    w_key = jnp.array([[0, 1], [1, 0], [0, 1], [1, 0]], jnp.float32)
    w_value = jnp.array([[1, 1], [0, 0], [0, 1], [1, 0]], jnp.float32)
    return layer(x @ w_query, x @ w_key, x @ w_value, mask)


def words(weights: np.ndarray, source: Sequence[str], target: Sequence[str] = ()) -> attention_maps.AttentionMap:
    """Returns weights with words on both sides, by default the same ones."""
    return attention_maps.AttentionMap(tuple(source), tuple(target or source), np.asarray(weights))


def the_cat_sat() -> attention_maps.AttentionMap:
    """Returns the table of section 9.5."""
    return words(np.array([[0.70, 0.15, 0.15], [0.10, 0.60, 0.30], [0.05, 0.75, 0.20]]), ("The", "cat", "sat"))


def heads() -> attention_maps.AttentionWeights:
    """Returns the maps of four heads of 17.5.9, each built to link one pair of words: cat-sat, cat-the, and so on.

    Each head's query of the first word matches its key of the second; all other words attend evenly.
    """
    sentence = "the black cat sat on the mat".split()
    at = {word: sentence.index(word) for word in sentence}
    net = pure(lambda config, rngs: modules.SelfAttention(8, 4, rngs=rngs), None)
    kernel = np.zeros((8, 4, 3, 2), np.float32)  # the third axis: query, key, value
    for head, (one, other) in enumerate([("cat", "sat"), ("cat", "the"), ("sat", "on"), ("black", "cat")]):
        kernel[at[one], head, 0, 0] = kernel[at[other], head, 1, 0] = 5
    x = jnp.eye(8)[jnp.array([at[word] for word in sentence])][None]
    query, key, _ = net.bind(net.init(jax.random.key(0)) | {"kernel": jnp.asarray(kernel)}).project(x)
    pieces = tuple(f"▁{word}" for word in sentence)
    return attention_maps.AttentionWeights(pieces, pieces, np.asarray(F.attention_weights(query, key)))


def paths(length: int = 16) -> Data:
    """Returns, for three layers, the size of the gradient of each output (row) with respect to each input (column).

    This is figure 17.19: a recurrence passes on what came before, a convolution of three sees its neighbors, and
    attention everything. Each column of a matrix of ones would be a layer in which all pairs are one step apart.
    """
    makes = {
        "recurrent, one step after another": lambda rngs: modules.RecurrentLayer(8, cell="rnn", rngs=rngs),
        "convolution of three": lambda rngs: modules.ConvolutionStack(8, 1, rngs=rngs),
        "self-attention": lambda rngs: modules.AttentionLayer(modules.SelfAttention(8, 2, rngs=rngs)),
    }
    return {name: _influence(make, random(1, length, 8)) for name, make in makes.items()}


def _influence(make: Callable[[Any], Any], x: jax.Array) -> np.ndarray:
    net = pure(lambda config, rngs: make(rngs), None)
    params = net.init(jax.random.key(0))
    slopes = jax.jit(jax.jacrev(lambda x: net.apply(params, x)[0].sum(-1)))(x)[:, 0]
    return np.asarray(jnp.linalg.norm(slopes, axis=-1))


def draw_paths(data: Data) -> Picture:
    """Draws the gradient of each output with respect to each input, each layer relative to its largest."""
    figure, grid = panels(3.5 * len(data), 3.6, 1, len(data), sharey=True)
    for axes, (name, size) in zip(grid, data.items(), strict=True):
        image = axes.imshow(np.log10(np.maximum(size / size.max(), 1e-6)), cmap="Blues", vmin=-6, vmax=0)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("input position")
        axes.set(xticks=range(0, len(size), 5), yticks=range(0, len(size), 5))
    grid[0].set_ylabel("output position")
    bar = figure.colorbar(image, ax=list(grid), shrink=0.75, label="gradient, relative to the largest")
    bar.set_ticks([-6, -4, -2, 0], labels=["$10^{-6}$ or 0", "$10^{-4}$", "$10^{-2}$", "1"])
    return figure


def scene(size: int = 64) -> np.ndarray:
    """Returns a picture ``[size, size, 3]``: a dark bird over water, under a pale sky."""
    y, x = np.mgrid[:size, :size] / size
    picture = np.full((size, size, 3), (0.72, 0.82, 0.93))
    picture[y > 0.7] = (0.1, 0.35, 0.55)
    bird = ((x - 0.5) ** 2 / 0.02 + (y - 0.35) ** 2 / 0.004 < 1) | (np.abs(y - 0.35 + 0.5 * np.abs(x - 0.5)) < 0.03) & (
        np.abs(x - 0.5) < 0.3
    )
    picture[bird] = (0.15, 0.12, 0.1)
    return (255 * picture).astype(np.uint8)


def pixels() -> Data:
    """Returns a picture and, of three of its cells, the weights of `modules.GridAttention` over all: figure 17.18.

    The network before it is a mean over each cell, whose colors are made independent; queries and keys are twice
    those features. So a cell attends to the cells of its color, near or far.
    """
    picture, cells = scene(), 16
    colors = np.asarray(F.average_pool(jnp.asarray(picture[None], jnp.float32), len(picture) // cells)).reshape(-1, 3)
    directions, _, _ = np.linalg.svd(colors - colors.mean(0), full_matrices=False)
    independent = directions[:, :2] * len(colors) ** 0.5  # mixtures of three colors lie in a plane
    features = jnp.asarray(independent, jnp.float32).reshape(1, cells, cells, 2)
    net = pure(lambda config, rngs: modules.GridAttention(2, 2, rngs=rngs), None)
    params = net.init(jax.random.key(0))
    kernel = params["attention"]["kernel"].at[:, 0, :2].set(2 * jnp.eye(2)[:, None])  # queries and keys
    captured: dict = {}
    net.bind({"attention": params["attention"] | {"kernel": kernel}})(features, intermediates=captured)
    weights = np.asarray(captured["self"].weights())[0, 0]
    at = {"bird": (5, 8), "sky": (2, 3), "water": (13, 4)}
    maps = {name: weights[row * cells + column].reshape(cells, cells) for name, (row, column) in at.items()}
    return {"picture": picture, **maps}


def draw_pixels(data: Data) -> Figure:
    """Draws the picture, and over it the attention of one cell of each thing in it."""
    maps = {f"seen by the {name}": weights for name, weights in data.items() if name != "picture"}
    return plots.image_maps([data["picture"]], [maps], titles=["the picture"])


def drawn_map(attention: attention_maps.AttentionMap, title: str, more: plots.Shade = "darker") -> Figure:
    """Draws a map between words."""
    return plots.attention_map(attention, title=title, more=more)
