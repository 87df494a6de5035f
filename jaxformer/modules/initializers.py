"""The distributions of initial parameters.

The random bits are a hash of (key, index), as for dropout, and not from ``jax.random``: on a CPU, a threefry draw for a
stack of layers takes 0.6 s to compile, and a model has a dozen of them (the hash shortened the compilation of an
initialization from 8.6 s to 1.0 s). Bits that depend on an absolute index are also the same under every sharding of the
parameters.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.functional.dropout import every_index, hashed_bits


@functools.partial(jax.jit, static_argnames="shape")
def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns values uniform in (-1, 1): 23 random bits plus one half, so that they are symmetric and never -1 or 1."""
    bits = hashed_bits(key, every_index(shape)) >> 9
    return (bits.astype(jnp.float32) + 0.5) * 2**-22 - 1


def xavier_uniform(key: jax.Array, shape: tuple[int, ...], *, fan_in: int, fan_out: int) -> jax.Array:
    """Returns values uniform in ``+-sqrt(6 / (fan_in + fan_out))`` (Glorot and Bengio 2010).

    The fans are arguments because some kernels stack several matrices.
    """
    return uniform(key, shape) * (6 / (fan_in + fan_out)) ** 0.5


def normal(key: jax.Array, shape: tuple[int, ...], *, deviation: float) -> jax.Array:
    """Returns normal values with mean 0, drawn by inverting the cumulative distribution function."""
    return jax.lax.erf_inv(uniform(key, shape)) * (2**0.5 * deviation)


class Gains(NamedTuple):
    """Factors of the initial kernels of a block, relative to `xavier_uniform` of each of its matrices.

    `scaled_gains` returns the default of the models.
    """

    query_key: float = 1.0
    value: float = 1.0
    output: float = 1.0  # the output projection of attention
    up: float = 1.0
    down: float = 1.0


UNIT_GAINS = Gains()

FAIRSEQ_GAINS = Gains(query_key=0.5**0.5, value=0.5**0.5)
"""The gains of fairseq's attention: the bound of one ``[D, 3D]`` matrix for queries, keys and values (Ott et al.
2019)."""


def scaled_gains(num_layers: int, *, after_residual: bool) -> Gains:
    """Returns the default gains: 0.5 for queries, keys and values and, under post-norm, outputs scaled by depth.

    With Xavier's bound for each ``[D, D]`` matrix, attention starts too large; `FAIRSEQ_GAINS` are 0.71. Under
    post-norm (`after_residual`), the outputs of sublayers are also divided by ``sqrt(2 num_layers)`` (Radford et al.
    2019), because every norm divides the skip path by the deviation of the sum, so large sublayer outputs drown it out.

    Validation loss in nats per token after 500 updates of Multi30k en-de (4 + 4 layers, D = 128), for one seed and, in
    the last two columns, for up to three later seeds, whose intervals are in experiments/initialization:

    ============================  =========  ========  =========  ========
    gains                         post-norm  pre-norm  post-norm  pre-norm
    ============================  =========  ========  =========  ========
    1                             4.132      3.653     4.15       3.65
    query and key 0.5             3.991      3.586
    value 0.5                     3.740      3.590
    `FAIRSEQ_GAINS`                                    3.88
    query, key and value 0.5      3.634      3.539                3.54
    all of these, and depth       3.404      3.566     3.41
    ============================  =========  ========  =========  ========

    After 2,000 updates, post-norm has 2.11 with these gains and 2.99 with gains of 1 (means of three seeds).
    """
    depth = (2 * num_layers) ** -0.5 if after_residual else 1.0
    return Gains(query_key=0.5, value=0.5, output=depth, down=depth)
