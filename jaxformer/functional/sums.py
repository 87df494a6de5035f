"""Sums with terms that many positions share, whose gradients are sums over all of these positions."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float


def add_shared(x: Float[Array, "*dims"], term: Float[Array, ...]) -> Float[Array, "*dims"]:
    """Returns ``x + term`` in the dtype of `x`; the gradient of `term`, which broadcasts to `x`, is summed in float32.

    In bfloat16, the transpose of broadcasting would sum in bfloat16: 20,000 ones would add up to 8,192.

    >>> import jax.numpy as jnp
    >>> add_shared(jnp.ones((2, 1, 3)), jnp.array([1.0, 2.0, 3.0]))[1, 0].tolist()
    [2.0, 3.0, 4.0]
    """
    wide = np.promote_types(x.dtype, np.float32)
    term = term.astype(x.dtype).reshape((1,) * (x.ndim - term.ndim) + term.shape)
    return (x.astype(wide) + term.astype(wide)).astype(x.dtype)
