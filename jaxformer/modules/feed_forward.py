"""The feed-forward network of a block."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.feed_forward import Activation
from jaxformer.modules.linear import Linear


class FeedForward(nnx.Module):
    """Two linear maps with biases and an activation between, F = 4D by default; see `functional.feed_forward`."""

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        activation: Activation = functional.relu,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        hidden = 4 * width if hidden is None else hidden
        self.up = Linear(width, hidden, axes=("model", "hidden"), rngs=rngs)
        self.down = Linear(hidden, width, axes=("hidden", "model"), rngs=rngs)
        self.activation = activation
        self.dropout = dropout

    def __call__(self, x: Float[Array, "B T D"], *, key: jax.Array | None = None) -> Float[Array, "B T D"]:
        hidden = constrain(self.activation(self.up(x)), "batch", "length", "hidden")
        return self.down(functional.dropout(hidden, rate=self.dropout, key=key))
