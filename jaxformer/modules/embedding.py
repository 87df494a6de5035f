"""Token embeddings, which may also be the output projection, position tables, and the sum of both."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.positions import check_positions
from jaxformer.modules.initializers import normal
from jaxformer.sharding import tables


class Embedding(nnx.Module):
    """A table of token vectors, looked up and multiplied by ``sqrt(D)`` on the way in (Vaswani et al. 2017, 3.4).

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
        """Returns ``sqrt(D) table[tokens]``, in `dtype`. Token ids must be below the vocabulary size.

        Args:
          copies: the result of the method `copies`, if several uses share it; None computes it.
        """
        if copies is None:
            copies = self.copies(tokens.shape[0], dtype=dtype)
        x = tables.lookup(copies, tokens).astype(dtype)
        return x * jnp.asarray(x.shape[-1] ** 0.5, dtype)

    def copies(self, rows: int, length: int = 1, *, dtype: jnp.dtype) -> Float[Array, "G C V D"]:
        """Returns `sharding.table_copies` of the table; if all uses of a step share it, its gradient is summed once."""
        return tables.table_copies(self.table[...], rows=rows, length=length, dtype=dtype)

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Returns ``x table^T``, in float32."""
        table = self.table[...].astype(x.dtype)
        return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)


class LearnedPositions(nnx.Module):
    """A table of position vectors; a longer sequence is an error, not a clamped lookup."""

    def __init__(self, max_positions: int, d_model: int, *, rngs: nnx.Rngs):
        table = normal(rngs.params(), (max_positions, d_model), deviation=d_model**-0.5)
        self.table = nnx.Param(table, axes=("position", "model"))

    def __call__(self, positions: Int[Array, "*batch"], *, length: int) -> Float[Array, "*batch D"]:
        """Returns the vectors of `positions`, all below the static `length`."""
        table = self.table[...]
        check_positions(length, table.shape[0])
        return functional.learned(table, positions)


class Embeddings(nnx.Module):
    """The input of a stack: token vectors plus position vectors, with dropout.

    Positions are sinusoidal unless there is a table of learned ones.
    """

    def __init__(
        self, tokens: Embedding, positions: LearnedPositions | None = None, *, dropout: float = 0.0, dtype: str
    ):
        self.tokens, self.positions = tokens, positions
        self.dropout = dropout
        self.dtype = jnp.dtype(dtype)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        key: jax.Array | None = None,
        copies: Float[Array, "G C V D"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the vectors of full sequences.

        Args:
          copies: see `Embedding`.
        """
        length = tokens.shape[1]
        # Positions are a constant of the program, unless they would make it large.
        array_module = np if length * self.d_model <= 1 << 20 else jnp
        x = self._sum(tokens, array_module.arange(length)[None], length, copies)
        return functional.dropout(x, rate=self.dropout, key=key)

    def step(self, tokens: Int[Array, "B K"], positions: Int[Array, "B K"], *, length: int) -> Float[Array, "B K D"]:
        """Returns the vectors of one token of each hypothesis at its position, below the static `length`."""
        return self._sum(tokens, positions, length, None)

    def check_length(self, length: int) -> None:
        """Checks that a learned table has at least `length` positions.

        Raises:
          ValueError: the table is shorter; the message has both lengths.
        """
        if self.positions is not None:
            check_positions(length, self.positions.table.shape[0])

    @property
    def d_model(self) -> int:
        """D, the dimension of the vectors."""
        return self.tokens.table.shape[1]

    def _sum(self, tokens: Array, positions: Array | np.ndarray, length: int, copies: Array | None) -> Array:
        if self.positions is None:
            offset = functional.sinusoidal(positions, dim=self.d_model)
        else:
            offset = self.positions(jnp.asarray(positions), length=length)
        x = self.tokens(tokens, dtype=self.dtype, copies=copies) + offset.astype(self.dtype)
        return constrain(x, "batch", "length", "model")
