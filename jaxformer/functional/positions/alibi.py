"""Attention with linear biases (Press et al. 2022, "Train short, test long")."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxformer.functional.bias import Bias


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Alibi(Bias):
    """The bias ``-slope_n |t - s|``: each head has its own rate of decay with distance; nothing is learned."""

    slopes: tuple[float, ...] = dataclasses.field(metadata={"static": True})

    def tile(self, query, query_index, key_index):
        distance = jnp.abs(query_index[:, None] - key_index[None]).astype(jnp.float32)
        return -jnp.asarray(self.slopes, jnp.float32).reshape(1, -1, 1, 1) * distance[None, None]


def alibi(num_heads: int) -> Alibi:
    """Returns the bias for `num_heads` heads, with the paper's slopes :math:`2^{-8/N}, 2^{-16/N}, \\dots, 2^{-8}`.

    If N is not a power of two, the slopes are those of the next lower power, then every other one of the next higher
    power, as in the authors' code.

    Raises:
      ValueError: `num_heads` is below 1.

    >>> alibi(4).slopes
    (0.25, 0.0625, 0.015625, 0.00390625)
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * i / lower) for i in range(1, lower + 1)]
    slopes += [2 ** (-4 * i / lower) for i in range(1, 2 * (num_heads - lower), 2)]
    return Alibi(tuple(slopes))
