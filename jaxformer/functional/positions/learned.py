"""Learned absolute positions: a table with one row for each position (Gehring et al. 2017; BERT, GPT, ViT)."""

from __future__ import annotations

from jaxtyping import Array, Float, Int


def learned(table: Float[Array, "L D"], positions: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Returns rows `positions` of the table. Check lengths first with `check_positions`: a gather clamps indices.

    >>> import jax.numpy as jnp
    >>> learned(jnp.array([[0., 1.], [2., 3.], [4., 5.]]), jnp.array([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """
    return table[positions]


def check_positions(length: int, table_length: int) -> None:
    """Refuses a sequence that is longer than the table of positions.

    Raises:
      ValueError: the sequence is longer; the message has both lengths and the remedies.
    """
    if length > table_length:
        raise ValueError(
            f"a sequence of length {length} has no learned position beyond {table_length}; "
            "shorten it, train with a larger max_positions, or use sinusoidal positions"
        )
