"""The distributions of initial parameters.

The random bits are those of dropout, a hash of (key, index), and not of ``jax.random``: on CPU a threefry draw of a
stack of layers takes 0.6 s to compile, and a model has a dozen of them (the hash shortened the compilation of an
initialization from 8.6 s to 1.0 s).
Bits that depend on an absolute index are also the same under every sharding of the parameters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxformer.functional.dropout import every_index, hashed_bits


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns values uniform in (-1, 1): 23 random bits plus one half, which is symmetric and never at the ends."""
    bits = hashed_bits(key, every_index(shape)) >> 9
    return (bits.astype(jnp.float32) + 0.5) * 2**-22 - 1


def xavier_uniform(key: jax.Array, shape: tuple[int, ...], *, fan_in: int, fan_out: int) -> jax.Array:
    """Returns values uniform in ``+-sqrt(6 / (fan_in + fan_out))`` (Glorot and Bengio 2010).

    The fans are arguments because some kernels stack several matrices.
    """
    return uniform(key, shape) * (6 / (fan_in + fan_out)) ** 0.5


def normal(key: jax.Array, shape: tuple[int, ...], *, deviation: float) -> jax.Array:
    """Returns normal values with mean 0, drawn through the inverse of its distribution function."""
    return jax.lax.erf_inv(uniform(key, shape)) * (2**0.5 * deviation)
