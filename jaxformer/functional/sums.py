"""Sums with a term that many positions share, such as a bias, whose gradient is a sum over all these positions."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.axes import vary_alike


def add_shared(x: Float[Array, "*dims"], term: Float[Array, ...]) -> Float[Array, "*dims"]:
    """Returns ``x + term`` in the dtype of `x`; the gradient of `term`, which broadcasts to `x`, is summed in float32.

    In bfloat16, the transpose of broadcasting would sum in bfloat16: 20,000 ones would add up to 8,192.

    >>> add_shared(jnp.ones((2, 1, 3)), jnp.array([1.0, 2.0, 3.0]))[1, 0].tolist()
    [2.0, 3.0, 4.0]
    """
    term = term.reshape((1,) * (x.ndim - term.ndim) + term.shape)
    if jnp.finfo(x.dtype).bits >= 32:
        return x + term.astype(x.dtype)
    x, term = vary_alike((x, term))  # before broadcasting, so that a mesh reduces gradients of the term's size
    return x + _spread(x.shape, x.dtype, term)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _spread(shape: tuple[int, ...], dtype: jnp.dtype, term: Array) -> Array:
    return jnp.broadcast_to(term.astype(dtype), shape)


@_spread.defjvp
def _spread_jvp(shape, dtype, primals, tangents):
    """Broadcasts in float32, in which the transpose then sums; XLA can still fuse the addition with a product."""
    return _spread(shape, dtype, *primals), jnp.broadcast_to(tangents[0].astype(jnp.float32), shape).astype(dtype)
