"""Where the normalization stands around a residual connection, one short function an arrangement."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

Sublayer = Callable[[jax.Array], jax.Array]
Arrangement = Callable[[jax.Array, Sublayer, Any], jax.Array]
"""Of an input, a sublayer and its norm; for `sandwich_norm`, its two norms."""


def residual(x: jax.Array, sublayer: Sublayer) -> jax.Array:
    """``x + sublayer(x)`` (He et al. 2016): the Jacobian is ``I + d sublayer / dx``, so gradients have a free path.

    >>> import jax.numpy as jnp
    >>> residual(jnp.array(2.0), lambda x: 10 * x).item()
    22.0
    """
    return x + sublayer(x)


def pre_norm(x: jax.Array, sublayer: Sublayer, norm: Sublayer) -> jax.Array:
    """``x + sublayer(norm(x))``: the skip path stays clean, deep stacks train; needs one more norm at the end.

    >>> import jax.numpy as jnp
    >>> pre_norm(jnp.array(4.0), lambda x: 10 * x, lambda x: x / 4).item()  # 4 + 10 (4 / 4)
    14.0
    """
    return x + sublayer(norm(x))


def post_norm(x: jax.Array, sublayer: Sublayer, norm: Sublayer) -> jax.Array:
    """``norm(x + sublayer(x))``: the arrangement of Vaswani et al. 2017.

    >>> import jax.numpy as jnp
    >>> post_norm(jnp.array(4.0), lambda x: 10 * x, lambda x: x / 4).item()  # (4 + 10 4) / 4
    11.0
    """
    return norm(x + sublayer(x))


def sandwich_norm(x: jax.Array, sublayer: Sublayer, norms: Iterable[Sublayer]) -> jax.Array:
    """``x + after(sublayer(before(x)))``: what a sublayer adds is bounded too (Ding et al. 2021; Gemma 2).

    >>> import jax.numpy as jnp
    >>> sandwich_norm(jnp.array(4.0), lambda x: 10 * x, (lambda x: x / 4, lambda x: x / 5)).item()  # 4 + 10 (4 / 4) / 5
    6.0
    """
    before, after = norms
    return x + after(sublayer(before(x)))


def deep_norm(alpha: float) -> Arrangement:
    """``norm(alpha x + sublayer(x))``, post-norm that trains at depth 1,000 (Wang et al. 2022, "DeepNet").

    `deep_norm_gains` has the paper's `alpha`, and the gain for the initial values it belongs to.

    >>> import jax.numpy as jnp
    >>> deep_norm(3.0)(jnp.array(4.0), lambda x: 10 * x, lambda x: x / 4).item()  # (3 4 + 10 4) / 4
    13.0
    """
    return functools.partial(_deep_norm, alpha=alpha)


def _deep_norm(x: jax.Array, sublayer: Sublayer, norm: Sublayer, *, alpha: float) -> jax.Array:
    return norm(alpha * x + sublayer(x))


class Gains(NamedTuple):
    """Of `deep_norm`: the skip path's factor, and the gain of the initial value, output and feed-forward kernels."""

    alpha: float
    beta: float


def deep_norm_gains(num_encoder_layers: int, num_decoder_layers: int) -> tuple[Gains, Gains]:
    """The encoder's and the decoder's; 0 layers of one means a model of the other alone (Wang et al. 2022, table 2).

    Raises:
      ValueError: a depth below 0, or no layers at all.

    >>> encoder, decoder = deep_norm_gains(6, 6)
    >>> [round(x, 3) for x in (*encoder, *decoder)]
    [1.418, 0.497, 2.06, 0.343]
    """
    n, m = num_encoder_layers, num_decoder_layers
    if n < 0 or m < 0 or n + m == 0:
        raise ValueError(f"deep_norm_gains needs layers, got {n} and {m}")
    if n and m:
        return Gains(0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)), Gains(
            (3 * m) ** (1 / 4), (12 * m) ** (-1 / 4)
        )
    alone = Gains((2 * (n or m)) ** (1 / 4), (8 * (n or m)) ** (-1 / 4))
    return alone, alone
