"""The layers that are compared, all causal, as functions of the dimension of the model.

Table 1 of Vaswani et al. (2017) compares recurrence, convolution, self-attention and restricted self-attention; a
dilated stack of convolutions and linear attention (Katharopoulos et al. 2020) join them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from flax import nnx

from jaxformer import functional, masks, modules
from jaxformer.models.config import CellName

KERNEL = 3
HEADS = 2
Make = Callable[[nnx.Rngs], modules.SequenceLayer]


def recurrent(d_model: int, *, cell: CellName = "gru") -> Make:
    """Returns a recurrent layer: a GRU, or the plain RNN that the table's L D^2 counts."""
    return lambda rngs: modules.RecurrentLayer(d_model, cell=cell, rngs=rngs)


def convolution(d_model: int, *, dilation: int = 1) -> Make:
    """Returns a convolution that sees itself and two earlier positions."""
    options = {"kernel_size": KERNEL, "dilation": dilation, "causal": True}
    return lambda rngs: modules.Convolution(d_model, d_model, rngs=rngs, **options)


def attention(d_model: int, *, window: int | None = None, definition: bool = False) -> Make:
    """Returns self-attention to all earlier positions, or to `window` of them; by blocks, or by its definition."""
    name = "reference" if definition else "blockwise"
    attend = functools.partial(functional.attention, implementation=name)
    mask = masks.causal() if window is None else masks.window(window)
    make = lambda rngs: modules.SelfAttention(d_model, HEADS, attention=attend, rngs=rngs)
    return lambda rngs: modules.AttentionLayer(make(rngs), mask=mask)


def linear_attention(d_model: int) -> Make:
    """Returns linear attention to all earlier positions."""
    make = lambda rngs: modules.SelfAttention(d_model, HEADS, rngs=rngs)
    return lambda rngs: modules.LinearAttentionLayer(make(rngs), causal=True)


def dilations(length: int) -> list[int]:
    """Returns the dilations 1, K, K^2, ... of the fewest convolutions whose last position sees the first."""
    found: list[int] = []
    while functional.receptive_field(KERNEL, found) < length:
        found.append(KERNEL ** len(found))
    return found
