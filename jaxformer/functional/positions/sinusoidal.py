"""Sinusoidal positions (Vaswani et al. 2017, section 3.5)."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def sinusoidal(
    positions: Int[Array, "*batch"] | Int[np.ndarray, "*batch"],
    *,
    dim: int,
    base: float = 10_000.0,
    layout: Literal["interleaved", "halves"] = "interleaved",
) -> Float[Array, "*batch D"]:
    r"""Returns position vectors of sines and cosines in float32, defined for every position.

    .. math:: p_t(2k) = \sin(\omega_k t), \quad p_t(2k+1) = \cos(\omega_k t), \quad \omega_k = base^{-2k/D}

    The product :math:`p_t \cdot p_{t+o} = \sum_k \cos(\omega_k o)` depends only on the offset. Positions in a NumPy
    array become a constant of the program, computed once in float64, because sines are slow on a CPU.

    Args:
      layout: "interleaved" alternates sines and cosines, as in the formula; "halves" puts all sines before all cosines.
        Hugging Face's Marian uses this order and the frequencies above. Fairseq, Marian (C++) and T5X use this order,
        but the frequencies :math:`base^{-k/(D/2 - 1)}`; fairseq also counts positions from ``padding_idx + 1``.

    Raises:
      ValueError: `dim` is odd, or `layout` is unknown.

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(sinusoidal(jnp.arange(2), dim=4)).round(2))
    [[0.   1.   0.   1.  ]
     [0.84 0.54 0.01 1.  ]]
    """
    if dim % 2:
        raise ValueError(f"dim must be even to pair sines with cosines, got {dim}")
    numpy, dtype = (np, np.float64) if isinstance(positions, np.ndarray) else (jnp, np.float32)
    frequency = (base ** (-np.arange(0, dim, 2) / dim)).astype(dtype)
    angle = positions[..., None].astype(dtype) * frequency.reshape((1,) * positions.ndim + (-1,))
    if layout not in ("interleaved", "halves"):
        raise ValueError(f"layout must be 'interleaved' or 'halves', got {layout!r}")
    pairs = numpy.stack([numpy.sin(angle), numpy.cos(angle)], -1 if layout == "interleaved" else -2)
    return jnp.asarray(pairs, jnp.float32).reshape(*positions.shape, dim)
