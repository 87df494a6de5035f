"""Tables of "Lecture 17: Attention", computed: positions (17.1), costs of layers (17.2), published models (17.24)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tables import table
from jaxformer import functional as F
from jaxformer import pure
from jaxformer.models.presets import PRESETS
from jaxformer.modules import Block, FeedForward, LayerNorm, SelfAttention, Stack
from jaxformer.planning.graph import products
from jaxformer.planning.sizes import sizes

PRINTED = {
    "transformer-base": "65M",
    "transformer-big": "213M",
    "bert-base": "110M",
    "bert-large": "340M",
    "xlnet-large": "~340M",
    "roberta-large": "355M",
    "gpt2-xl": "1.5B",
    "megatron-8b": "8.3B",
    "turing-17b": "17B",
    "gpt3-175b": "175B",
    "gopher-280b": "280B",
}
"""The models of figure 17.24 by their names in `models.presets`, with the parameters that the figure gives them."""


def positions() -> np.ndarray:
    """Returns the rows of table 17.1: sinusoids of four dimensions at positions 0 to 2."""
    return np.asarray(F.sinusoidal(jnp.arange(3), dim=4))


def positions_table() -> str:
    """Returns table 17.1 with six digits."""
    rows = zip(("I", "Can", "Buy"), range(3), positions(), strict=True)
    heading = ("token", "t", "sin(t)", "cos(t)", "sin(0.01t)", "cos(0.01t)")
    return table(heading, *((token, t, *(f"{x:.6f}" for x in row)) for token, t, row in rows))


def costs(length: int, dim: int, taps: int = 3) -> dict[str, int]:
    """Returns the multiply-adds of one layer of each kind, counted in the program that computes it.

    As in table 17.2, they are of the states of a recurrence without its inputs, and of the logits of attention alone,
    half of `mixing`, which has the weighted sum, too; `attention layer` has its four projections besides.
    """
    shaped: Callable[..., Any] = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)
    x, narrow = shaped(1, length, dim), shaped(1, length, 1)
    weights = F.RecurrentWeights(*(shaped(*shape) for shape in [(1, 1, dim), (dim, 1, dim), (1, dim), (1, dim)]))
    definition = functools.partial(F.attention, implementation="reference")
    layer = pure(lambda config, rngs: SelfAttention(dim, 8, attention=definition, rngs=rngs), None)
    programs = {
        "recurrent": (lambda x, weights: F.recurrent(F.rnn_cell, x, weights)[0], narrow, weights),
        "convolution": (F.convolution, x, shaped(taps, dim, dim)),
        "mixing": (lambda x: definition(x, x, x), shaped(1, length, 1, dim)),
        "attention layer": (layer.apply, layer.shapes, x),
    }
    found = {name: products(*program).flops // 2 for name, program in programs.items()}
    return found | {"recurrent": found["recurrent"] - length * dim, "attention": found["mixing"] // 2}


def costs_table() -> str:
    """Returns table 17.2 with its two examples, L = 100 and L = 10,000 at D = 512 and K = 3, and longest paths."""
    short, long = costs(100, 512), costs(10_000, 512)
    paths = {"recurrent": "L", "convolution": "L / K", "attention": "1"}
    formulas = {"recurrent": "L D²", "convolution": "K L D²", "attention": "L² D"}
    rows = ((name, formulas[name], f"{short[name]:,}", f"{long[name]:,}", path) for name, path in paths.items())
    return table(("layer", "cost", "L = 100", "L = 10,000", "longest path"), *rows)


def layers_to_span(length: int, taps: int) -> tuple[int, int]:
    """Returns the plain and the dilated convolutions that it takes until the last position sees the first."""
    plain = math.ceil((length - 1) / (taps - 1))
    dilated = next(n for n in range(1, 99) if F.receptive_field(taps, [taps**i for i in range(n)]) >= length)
    assert F.receptive_field(taps, [1] * plain) >= length > F.receptive_field(taps, [1] * (plain - 1))
    return plain, dilated


def stack_parameters(name: str) -> int:
    """Returns 12 L d², from the kernels of a stack of the package's blocks with the layers and width of a model."""
    config = PRESETS[name].config
    make = lambda rngs: Block(
        SelfAttention(config.d_model, config.num_heads, rngs=rngs),
        FeedForward(config.d_model, rngs=rngs),
        norm=lambda: LayerNorm(config.d_model),
    )
    net = pure(lambda _, rngs: Stack(make, sizes(PRESETS[name]).num_layers, rngs=rngs), None)
    kernels = (leaf for path, leaf in jax.tree.leaves_with_path(net.shapes) if path[-1].key == "kernel")
    return sum(math.prod(leaf.shape) for leaf in kernels)


def models_table() -> str:
    """Returns figure 17.24 with the sizes of the package's models beside the printed ones."""
    heading = ("model", "layers", "width", "heads", "head dim", "printed", "12 L d²", "all parameters here")
    rows = []
    for name, printed in PRINTED.items():
        config, size = PRESETS[name].config, sizes(PRESETS[name])
        shape = size.num_layers, config.d_model, config.num_heads, config.dim_of_heads
        counts = (f"{count / 1e6:,.1f}M" for count in (stack_parameters(name), size.parameters))
        rows.append((name, *shape, printed, *counts))
    return table(heading, *rows)
