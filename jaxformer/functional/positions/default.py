"""The positions 0, 1, 2, ... of a sequence whose length may be symbolic."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.errors import InconclusiveDimensionOperation
from jaxtyping import Array, Int


def first_positions(length: Any, *, most: int) -> Int[np.ndarray, " T"] | Int[Array, " T"]:
    """Returns the positions of a sequence: a NumPy array (a constant of the program) if there are at most `most`.

    For a symbolic length (``jax.export.symbolic_shape``) with a constraint such as ``s <= 512``, the result covers the
    longest sequence, or up to twice its length; use the first `length` of what you compute from it. Without a
    constraint the result is a JAX array.

    >>> first_positions(3, most=8), first_positions(3, most=2).tolist()
    (array([0, 1, 2]), [0, 1, 2])
    """
    if isinstance(length, int):
        return np.arange(length) if length <= most else jnp.arange(length)
    bounds = (1 << exponent for exponent in range(most.bit_length()))
    bound = next((bound for bound in bounds if _is_at_most(length, bound)), None)
    return jnp.arange(length) if bound is None else np.arange(bound)


def _is_at_most(length: Any, bound: int) -> bool:
    try:
        return bool(length <= bound)
    except InconclusiveDimensionOperation:
        return False
