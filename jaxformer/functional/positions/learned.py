"""Learned absolute positions: a table with one row for each position (Gehring et al. 2017; BERT, GPT, ViT)."""

from __future__ import annotations

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxformer.axes import has_known_values


def learned(table: Float[Array, "L D"], positions: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Returns rows `positions` of the table.

    Under tracing the values of positions are unknown and not checked: one beyond the table gets its last row.

    Raises:
      ValueError: the table has no row for a position; the message has the position and the range.

    >>> import jax.numpy as jnp
    >>> learned(jnp.array([[0., 1.], [2., 3.], [4., 5.]]), jnp.array([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """
    check_given_positions(positions, 0, table.shape[0])
    return table[positions]


def check_positions(length: int, table_length: int) -> None:
    """Checks that a sequence is not longer than the table of positions.

    Raises:
      ValueError: the sequence is longer; the message has both lengths and the remedies.
    """
    if length > table_length:
        raise ValueError(
            f"a sequence of length {length} has no learned position beyond {table_length}; "
            "shorten it, train with a larger max_positions, or use sinusoidal positions"
        )


def check_given_positions(positions: ArrayLike, offset: int, table_length: int) -> None:
    """Checks that positions are in ``[-offset, table_length)``, for which the table has rows.

    Positions whose values are unavailable, because they are traced or held by other processes, are not checked.

    Raises:
      ValueError: a position is outside; the message has it and the range.
    """
    if not has_known_values(positions):
        return
    values = np.asarray(positions)
    if (wrong := values[(values < -offset) | (values >= table_length)]).size:
        raise ValueError(
            f"position {wrong[0]} has no learned vector: the table covers {-offset} to {table_length - 1}; "
            "train with a larger max_positions, or use sinusoidal positions"
        )
