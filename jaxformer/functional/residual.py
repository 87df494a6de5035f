"""Where the normalisation stands around a residual connection, one short function an arrangement."""

from __future__ import annotations

from collections.abc import Callable

import jax

Sublayer = Callable[[jax.Array], jax.Array]
Arrangement = Callable[[jax.Array, Sublayer, Sublayer], jax.Array]


def residual(x: jax.Array, sublayer: Sublayer) -> jax.Array:
    """``x + sublayer(x)`` (He et al. 2016): the Jacobian is ``I + d sublayer / dx``, so gradients have a free path."""
    return x + sublayer(x)


def pre_norm(x: jax.Array, sublayer: Sublayer, norm: Sublayer) -> jax.Array:
    """``x + sublayer(norm(x))``: the skip path stays clean, deep stacks train; needs one more norm at the end."""
    return x + sublayer(norm(x))


def post_norm(x: jax.Array, sublayer: Sublayer, norm: Sublayer) -> jax.Array:
    """``norm(x + sublayer(x))``: the arrangement of Vaswani et al. 2017."""
    return norm(x + sublayer(x))
