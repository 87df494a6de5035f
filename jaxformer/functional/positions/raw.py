"""Positions as plain numbers, the simplest baselines for position vectors: t and t / (N - 1)."""

from __future__ import annotations

import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def raw_positions(
    positions: Int[Array, "*batch"] | Int[np.ndarray, "*batch"], *, dim: int = 1
) -> Float[Array, "*batch D"]:
    """Returns each position t as a float32 vector of `dim` entries equal to t, which is unbounded.

    To count from 1, pass ``1 + jnp.arange(N)``.

    >>> import jax.numpy as jnp
    >>> raw_positions(jnp.arange(3), dim=2).tolist()
    [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    """
    t = jnp.asarray(positions, jnp.float32)[..., None]
    return jnp.broadcast_to(t, (*t.shape[:-1], dim))


def normalized_positions(
    positions: Int[Array, "*batch"] | Int[np.ndarray, "*batch"],
    *,
    length: int | Int[Array, "*#batch"] | Int[np.ndarray, "*#batch"],
    dim: int = 1,
) -> Float[Array, "*batch D"]:
    r"""Returns :math:`t / (N - 1)`, which lies in [0, 1] for :math:`0 \le t < N`, as vectors of `dim` equal entries.

    One step is :math:`1 / (N - 1)`, so the value of a position depends on the length of the sequence, and a decoder
    that does not know the final length cannot use it.

    Args:
      length: N, for all sequences (an integer, or a symbol as in ``jax.export.symbolic_shape``), or in an array that
        broadcasts to `positions`, such as ``[B, 1]``; at N = 1 the only position is 0.

    Raises:
      ValueError: a length that is known at trace time is below 1.

    >>> import jax.numpy as jnp
    >>> normalized_positions(jnp.arange(5), length=5).ravel().tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    has_value = isinstance(length, int | np.integer | np.ndarray | jax.Array)  # a symbol has none
    if has_value and not isinstance(length, jax.core.Tracer) and np.min(length, initial=1) < 1:
        raise ValueError(f"length must be at least 1, got {np.min(length)}")
    last = jnp.maximum(jnp.asarray(length, jnp.float32) - 1, 1)
    t = jnp.asarray(positions, jnp.float32)
    t = t / jnp.broadcast_to(last, t.shape)
    return jnp.broadcast_to(t[..., None], (*t.shape, dim))
