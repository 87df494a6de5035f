"""Self-attention over the feature grid of a convolutional network."""

from __future__ import annotations

import functools
from typing import Literal

from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.modules.attention import Logits, SelfAttention
from jaxformer.modules.attention_function import AttentionFunction
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.linear import zeros_param


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
          ValueError: the form is unknown, or `num_heads` does not divide `d_attention`, C'.
        """
        if form not in ("scaled", "gain"):
            raise ValueError(f"form must be scaled or gain, got {form!r}")
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
