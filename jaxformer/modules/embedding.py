"""Token embeddings, which may also be the output projection, and position tables."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.positions import check_positions
from jaxformer.modules.initializers import normal


class Embedding(nnx.Module):
    """A table of token vectors: looked up on the way in, multiplied by ``sqrt(D)`` (Vaswani et al. 2017, 3.4).

    Tied to the output projection, the same table scores each token on the way out (Press and Wolf 2017).
    """

    def __init__(self, vocab_size: int, width: int, *, rngs: nnx.Rngs):
        table = normal(rngs.params(), (vocab_size, width), deviation=width**-0.5)
        self.table = nnx.Param(table, axes=("vocab", "model"))

    def __call__(self, tokens: Int[Array, "*batch"], *, dtype: jnp.dtype = jnp.dtype("float32")) -> Array:
        """``sqrt(D) table[tokens]``, ``[*batch, D]`` in `dtype`.  Token ids must be below the vocabulary size."""
        table = self.table[...]
        table = constrain(table, "vocab", None)
        return table[tokens].astype(dtype) * jnp.asarray(table.shape[1] ** 0.5, dtype)

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """``x table^T``, in float32."""
        table = self.table[...].astype(x.dtype)
        return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)


class LearnedPositions(nnx.Module):
    """A table of position vectors; a longer sequence is an error, not a clamped lookup."""

    def __init__(self, max_length: int, width: int, *, rngs: nnx.Rngs):
        table = normal(rngs.params(), (max_length, width), deviation=width**-0.5)
        self.table = nnx.Param(table, axes=("position", "model"))

    def __call__(self, positions: Int[Array, "*batch"], *, length: int) -> Float[Array, "*batch D"]:
        """The vectors of `positions`, all below the static `length`."""
        table = self.table[...]
        check_positions(length, table.shape[0])
        return functional.learned(table, positions)
