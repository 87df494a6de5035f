"""The feed-forward network of a block."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.feed_forward import Activation
from jaxformer.modules.attention import Tape
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

    def __call__(
        self, x: Float[Array, "B T D"], *, key: jax.Array | None = None, tape: Tape | None = None
    ) -> Float[Array, "B T D"]:
        del tape  # there is nothing to see
        hidden = constrain(self.activation(self.up(x)), "batch", "length", "hidden")
        return self.down(functional.dropout(hidden, rate=self.dropout, key=key))


class GatedFeedForward(nnx.Module):
    """`functional.gated_feed_forward`: SwiGLU by default, GEGLU with `functional.gelu`; no biases.

    F = 8D/3 by default, which has as many parameters as two linear maps with 4D (Shazeer 2020).
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        activation: Activation = jax.nn.silu,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        hidden = 8 * width // 3 if hidden is None else hidden
        self.gate = Linear(width, hidden, bias=False, axes=("model", "hidden"), rngs=rngs)
        self.up = Linear(width, hidden, bias=False, axes=("model", "hidden"), rngs=rngs)
        self.down = Linear(hidden, width, bias=False, axes=("hidden", "model"), rngs=rngs)
        self.activation = activation
        self.dropout = dropout

    def __call__(
        self, x: Float[Array, "B T D"], *, key: jax.Array | None = None, tape: Tape | None = None
    ) -> Float[Array, "B T D"]:
        del tape
        hidden = constrain(self.activation(self.gate(x)) * self.up(x), "batch", "length", "hidden")
        return self.down(functional.dropout(hidden, rate=self.dropout, key=key))
