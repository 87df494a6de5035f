"""Sinusoidal positions (Vaswani et al. 2017, section 3.5)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def sinusoidal(positions: Int[Array, "*batch"], *, dim: int, base: float = 10_000.0) -> Float[Array, "*batch D"]:
    r"""The position vectors, sines and cosines interleaved, in float32, defined for every position.

    .. math:: p_t(2k) = \sin(\omega_k t), \quad p_t(2k+1) = \cos(\omega_k t), \quad \omega_k = base^{-2k/D}

    :math:`p_t \cdot p_{t+o} = \sum_k \cos(\omega_k o)` depends on the offset alone.

    Raises:
      ValueError: `dim` is odd.

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(sinusoidal(jnp.arange(2), dim=4)).round(2))
    [[0.   1.   0.   1.  ]
     [0.84 0.54 0.01 1.  ]]
    """
    if dim % 2:
        raise ValueError(f"sinusoidal positions pair sines with cosines: dim must be even, got {dim}")
    frequency = base ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    angle = positions[..., None].astype(jnp.float32) * frequency.reshape((1,) * positions.ndim + (-1,))
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(*positions.shape, dim)
