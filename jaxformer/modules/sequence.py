"""Sequence layers with one interface: recurrence, convolution, attention and linear attention; attention over grids.

A sequence layer maps ``x [B, T, D]`` to ``[B, T, D]`` and takes a mask of padding, so that they are interchangeable.
`Convolution` and `ConvolutionStack` have this interface too.
"""

from __future__ import annotations

import functools
from typing import Literal, Protocol

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional, masks
from jaxformer.functional.attention.linear import FeatureMap
from jaxformer.functional.tokens import clear_padding
from jaxformer.modules.attention import Logits, SelfAttention
from jaxformer.modules.attention_function import AttentionFunction
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.layers import zeros_param
from jaxformer.modules.recurrent import CellName, RecurrentStack


class SequenceLayer(Protocol):
    """A layer that maps a sequence to another one of the same shape.

    The contents of padding (`valid` False), even NaN and Inf, do not affect any other output or gradient; the output
    and gradient at padding are 0. `key` is the key of dropout; None means no dropout.
    """

    def __call__(self, x: Array, *, valid: Array | None = None, key: jax.Array | None = None) -> Array: ...


class RecurrentLayer(nnx.Module):
    """A `RecurrentStack` of one layer; if it is bidirectional, each direction outputs D / 2 features."""

    def __init__(self, d_model: int, *, cell: CellName = "lstm", bidirectional: bool = False, rngs: nnx.Rngs):
        """Creates the layer.

        Raises:
          ValueError: `d_model` is odd, and the layer is bidirectional.
        """
        if bidirectional and d_model % 2:
            raise ValueError(f"d_model must be even for two directions, got {d_model}")
        hidden_size = d_model // (1 + bidirectional)
        self.stack = RecurrentStack(d_model, hidden_size, cell=cell, bidirectional=bidirectional, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B T D"], *, valid: Bool[Array, "B T"] | None = None, key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """Returns the outputs of all steps; see `SequenceLayer`."""
        return self.stack(x, valid=valid, key=key)[0]


class AttentionLayer(nnx.Module):
    """Self-attention with a fixed mask, such as ``masks.causal()``, or ``masks.window(r)`` for restricted attention."""

    def __init__(self, attention: SelfAttention, *, mask: masks.Mask | None = None):
        self.attention, self.mask = attention, mask

    def __call__(
        self, x: Float[Array, "B T D"], *, valid: Bool[Array, "B T"] | None = None, key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """Returns the attention of the sequence to itself; see `SequenceLayer`."""
        if valid is None:
            return self.attention(x, mask=self.mask, key=key)
        padding = masks.padding(valid)
        mask = padding if self.mask is None else self.mask & padding
        return clear_padding(self.attention(clear_padding(x, valid), mask=mask, key=key), valid)


class LinearAttentionLayer(nnx.Module):
    """`functional.linear_attention` with the projections of a `SelfAttention`.

    The position scheme may rotate queries and keys (before the feature map). A bias, a scale or a score is not
    supported, because linear attention has no logits.
    """

    def __init__(
        self, attention: SelfAttention, *, causal: bool = False, feature_map: FeatureMap = functional.elu_plus_one
    ):
        """Creates the layer from the projections of `attention`.

        Raises:
          ValueError: the attention has dropout, a scale, a score or sinks, or fewer key heads than query heads.
        """
        settings = {"dropout": attention.dropout or None, "scale": attention.scale, "score": attention.score}
        settings["sinks"] = attention.sinks
        if refused := [name for name, value in settings.items() if value is not None]:
            raise ValueError(f"linear attention must be given a SelfAttention without {refused[0]}: it has no logits")
        if attention.kernel.shape[2] != 3:
            raise ValueError("linear attention must have as many key heads as query heads; omit num_kv_heads")
        self.attention, self.causal, self.feature_map = attention, causal, feature_map

    def __call__(
        self, x: Float[Array, "B T D"], *, valid: Bool[Array, "B T"] | None = None, key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """Returns the attention of the sequence to itself; see `SequenceLayer`.

        Raises:
          ValueError: the position scheme adds a bias.
        """
        query, keys, values = self.attention.project(clear_padding(x, valid))
        query, keys = (self.attention.positions.rotate(y, None) for y in (query, keys))
        query, bias = self.attention.positions.bias(query, None)
        if bias is not None:
            name = type(self.attention.positions).__name__
            raise ValueError(f"linear attention must have positions without a bias, such as Rotary, got {name}")
        mix = functools.partial(functional.linear_attention, causal=self.causal, feature_map=self.feature_map)
        return clear_padding(self.attention.output(mix(query, keys, values, valid=valid)), valid)


class GridAttention(nnx.Module):
    r"""Self-attention over the positions of a grid with D features each, added to the grid.

    Queries, keys and values are 1 x 1 convolutions to C' features, with biases, and the output is one back to D: linear
    maps of each position, so that the grid is treated as a sequence of h w tokens without positions. Two published
    forms:

    * "scaled": :math:`x + W_o\, softmax(q k^T / \sqrt{C'})\, v`.
    * "gain": :math:`x + \gamma W_o\, softmax(q k^T)\, v` with :math:`\gamma` initialized to 0, so that the network
      starts without attention (Zhang et al. 2019, SAGAN).

    For the attention without x added to it, apply the layer `attention` to the tokens ``[B, h w, D]``.
    """

    def __init__(
        self,
        d_model: int,
        d_attention: int,
        *,
        form: Literal["scaled", "gain"] = "scaled",
        num_heads: int = 1,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        """Initializes the parameters.

        Raises:
          ValueError: `num_heads` does not divide `d_attention`, C', or the form is unknown.
        """
        if form not in ("scaled", "gain"):
            raise ValueError(f"form must be 'scaled' or 'gain', got {form!r}")
        if d_attention % num_heads:
            raise ValueError(f"d_attention must be a multiple of num_heads {num_heads}, got {d_attention}")
        dim, logits = d_attention // num_heads, Logits(scale={"scaled": None, "gain": 1.0}[form])
        layer = functools.partial(SelfAttention, d_model, num_heads, head_dim=dim, bias=True, logits=logits)
        self.attention = layer(attention=attention, rngs=rngs)
        self.gain = zeros_param((), (), exists=form == "gain")

    def __call__(
        self, x: Float[Array, "B h w D"], *, intermediates: Intermediates | None = None
    ) -> Float[Array, "B h w D"]:
        """Returns the grid plus its attention; `intermediates` receives the `CapturedAttention` under "self"."""
        tokens = x.reshape(x.shape[0], -1, x.shape[3])
        y = self.attention(tokens, intermediates=intermediates).reshape(x.shape)
        if self.gain is not None:  # in float32, so that the gradient of the gain is summed in float32
            y = (self.gain[...].reshape(1, 1, 1, 1) * y.astype(self.gain.dtype)).astype(y.dtype)
        return x + y
