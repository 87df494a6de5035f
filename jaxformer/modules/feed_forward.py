"""The feed-forward network of a block."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.feed_forward import Activation
from jaxformer.modules.initializers import UNIT_GAINS, Gains
from jaxformer.modules.linear import Linear


class FeedForward(nnx.Module):
    """Two linear layers with biases and an activation in between, F = 4D by default: see `functional.feed_forward`."""

    def __init__(
        self,
        d_model: int,
        d_ff: int | None = None,
        *,
        activation: Activation = functional.relu,
        bias: bool = True,
        dropout: float = 0.0,
        gains: Gains = UNIT_GAINS,
        rngs: nnx.Rngs,
    ):
        if d_ff is None:
            d_ff = 4 * d_model
        self.up = Linear(d_model, d_ff, bias=bias, gain=gains.up, axes=("model", "hidden"), rngs=rngs)
        self.down = Linear(d_ff, d_model, bias=bias, gain=gains.down, axes=("hidden", "model"), rngs=rngs)
        self.activation = activation
        self.dropout = dropout

    def __call__(self, x: Float[Array, "B T D"], *, key: jax.Array | None = None) -> Float[Array, "B T D"]:
        hidden = constrain(self._hidden(x), "batch", "length", "hidden")
        return self.down(functional.dropout(hidden, rate=self.dropout, key=key))

    def _hidden(self, x: Array) -> Array:
        return self.activation(self.up(x))


class GatedFeedForward(FeedForward):
    """`functional.gated_feed_forward`: SwiGLU by default, GEGLU with `functional.gelu`.

    F = 8D/3 by default, with as many parameters as two linear layers with F = 4D (Shazeer 2020).
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int | None = None,
        *,
        activation: Activation = functional.silu,
        bias: bool = False,
        dropout: float = 0.0,
        gains: Gains = UNIT_GAINS,
        rngs: nnx.Rngs,
    ):
        if d_ff is None:
            d_ff = 8 * d_model // 3
        self.gate = Linear(d_model, d_ff, bias=bias, gain=gains.up, axes=("model", "hidden"), rngs=rngs)
        super().__init__(d_model, d_ff, activation=activation, bias=bias, dropout=dropout, gains=gains, rngs=rngs)

    def _hidden(self, x: Array) -> Array:
        return self.activation(self.gate(x)) * self.up(x)
