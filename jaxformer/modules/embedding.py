"""Token embeddings, which may also be the output projection, and position tables."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxformer import functional
from jaxformer.functional.positions import check_positions
from jaxformer.modules.initializers import normal
from jaxformer.sharding import tables


class Embedding(nnx.Module):
    """A table of token vectors: looked up on the way in, multiplied by ``sqrt(D)`` (Vaswani et al. 2017, 3.4).

    Tied to the output projection, the same table scores each token on the way out (Press and Wolf 2017).
    """

    def __init__(self, vocab_size: int, d_model: int, *, rngs: nnx.Rngs):
        table = normal(rngs.params(), (vocab_size, d_model), deviation=d_model**-0.5)
        self.table = nnx.Param(table, axes=("vocab", "model"))

    def __call__(
        self,
        tokens: Int[Array, "B ..."],
        *,
        dtype: jnp.dtype = jnp.dtype("float32"),
        copies: Float[Array, "G C V D"] | None = None,
    ) -> Float[Array, "B ... D"]:
        """``sqrt(D) table[tokens]``, in `dtype`.  Token ids must be below the vocabulary size.

        Args:
          copies: those of `copies`, where several uses share them; None makes some.
        """
        if copies is None:
            copies = self.copies(tokens.shape[0], dtype=dtype)
        x = tables.lookup(copies, tokens).astype(dtype)
        return x * jnp.asarray(x.shape[-1] ** 0.5, dtype)

    def copies(self, rows: int, length: int = 1, *, dtype: jnp.dtype) -> Float[Array, "G C V D"]:
        """Returns `sharding.table_copies` of the table; if all uses of a step share it, its gradient is summed once."""
        return tables.table_copies(self.table[...], rows=rows, length=length, dtype=dtype)

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """``x table^T``, in float32."""
        table = self.table[...].astype(x.dtype)
        return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)


class LearnedPositions(nnx.Module):
    """A table of position vectors; a longer sequence is an error, not a clamped lookup."""

    def __init__(self, max_positions: int, d_model: int, *, rngs: nnx.Rngs):
        table = normal(rngs.params(), (max_positions, d_model), deviation=d_model**-0.5)
        self.table = nnx.Param(table, axes=("position", "model"))

    def __call__(self, positions: Int[Array, "*batch"], *, length: int) -> Float[Array, "*batch D"]:
        """The vectors of `positions`, all below the static `length`."""
        table = self.table[...]
        check_positions(length, table.shape[0])
        return functional.learned(table, positions)
