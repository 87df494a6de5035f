"""Position schemes of self-attention: rotations of queries and keys, and biases of the logits.

A scheme is an argument of `SelfAttention`. It receives absolute positions, both for whole sequences and for cached
steps, so that the two agree. Position vectors that are added to token vectors are in `jaxformer.modules.embedding`.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxformer import functional
from jaxformer.functional.bias import Bias
from jaxformer.functional.positions.rotary import RotaryScaling
from jaxformer.modules.layers import normal, xavier_uniform


class PositionScheme(nnx.Module):
    """The base class of position schemes, which override its methods; the base class uses no positions."""

    def rotate(self, x: Float[Array, "B T N H"], positions: Int[ArrayLike, "... T"] | None) -> Float[Array, "B T N H"]:
        """Returns queries or keys rotated to these positions (0, 1, 2, ... by default); rotated keys are cached."""
        return x

    def bias(self, query: Float[Array, "B T N H"], scale: float | None) -> tuple[Float[Array, "B T N H"], Bias | None]:
        """Returns the queries to multiply with keys, and a bias of the logits or None.

        Args:
          scale: the factor of the logits; None for ``H ** -0.5``.
        """
        return query, None


class Rotary(PositionScheme):
    """Rotary positions (Su et al. 2021): see `functional.rotary`. It has no parameters."""

    def __init__(
        self,
        *,
        base: float = 10_000.0,
        scaling: RotaryScaling | None = None,
        pairs: Literal["halves", "neighbors"] = "halves",
    ):
        self.base, self.scaling = base, scaling
        self.pairs: Literal["halves", "neighbors"] = pairs

    def rotate(self, x, positions):
        return functional.rotary(x, positions, base=self.base, scaling=self.scaling, pairs=self.pairs)


class Alibi(PositionScheme):
    """Linear biases (Press et al. 2022): see `functional.alibi`. It has no parameters."""

    def __init__(self, num_heads: int):
        self.linear = functional.alibi(num_heads)

    def bias(self, query, scale):
        return query, self.linear


class RelativeKeys(PositionScheme):
    """A learned key for each distance up to `max_distance`, shared by the heads (Shaw et al. 2018)."""

    def __init__(self, head_dim: int, max_distance: int, *, rngs: nnx.Rngs):
        shape = 2 * max_distance + 1, head_dim
        table = xavier_uniform(rngs.params(), shape, fan_in=shape[0], fan_out=shape[1])
        self.table = nnx.Param(table, axes=(None, "head_dim"))

    def bias(self, query, scale):
        return query, functional.relative_keys(self.table[...])


class TransformerXL(PositionScheme):
    """Projected sinusoids of distances, with a content and a position bias for each head (Dai et al. 2019)."""

    def __init__(self, d_model: int, num_heads: int, head_dim: int, *, rngs: nnx.Rngs):
        shape = d_model, num_heads, head_dim
        kernel = xavier_uniform(rngs.params(), shape, fan_in=d_model, fan_out=num_heads * head_dim)
        self.kernel = nnx.Param(kernel, axes=("model", "heads", "head_dim"))
        self.content = nnx.Param(jnp.zeros((num_heads, head_dim), jnp.float32), axes=("heads", "head_dim"))
        self.position = nnx.Param(jnp.zeros((num_heads, head_dim), jnp.float32), axes=("heads", "head_dim"))

    def bias(self, query, scale):
        return functional.transformer_xl(query, self.kernel[...], self.content[...], self.position[...], scale=scale)


class T5Bias(nnx.Module):
    """The bias of T5: a learned number for each head and bucket of distances; one table serves all layers of a stack.

    Call it once and pass the result to the blocks as `bias`. See `functional.t5_bias`.
    """

    def __init__(
        self, num_heads: int, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool, rngs: nnx.Rngs
    ):
        table = normal(rngs.params(), (num_buckets, num_heads), deviation=num_heads**-0.5)
        self.table = nnx.Param(table, axes=(None, "heads"))
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def __call__(self) -> Bias:
        """Returns the bias of all layers."""
        return functional.t5_bias(self.table[...], max_distance=self.max_distance, bidirectional=self.bidirectional)
