"""Arrangements of normalization around a residual connection, one short function each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

Sublayer = Callable[[jax.Array], jax.Array]
"""A sublayer or a normalization with its parameters bound."""

Arrangement = Callable[[jax.Array, Sublayer, Any], jax.Array]
"""A function of an input, a sublayer and its norm (two norms for `sandwich_norm`)."""


def residual(x: jax.Array, sublayer: Sublayer) -> jax.Array:
    """Returns ``x + sublayer(x)`` (He et al. 2016).

    The Jacobian is ``I + d sublayer / dx``, so gradients have a direct path.

    >>> import jax.numpy as jnp
    >>> residual(jnp.array(2.0), lambda x: 10 * x).item()
    22.0
    """
    return x + sublayer(x)


def pre_norm(x: jax.Array, sublayer: Sublayer, norm: Sublayer) -> jax.Array:
    """Returns ``x + sublayer(norm(x))``.

    The skip path has no norm, so deep stacks train; the stack needs one more norm at its end.

    >>> import jax.numpy as jnp
    >>> pre_norm(jnp.array(4.0), lambda x: 10 * x, lambda x: x / 4).item()  # 4 + 10 (4 / 4)
    14.0
    """
    return x + sublayer(norm(x))


def post_norm(x: jax.Array, sublayer: Sublayer, norm: Sublayer) -> jax.Array:
    """Returns ``norm(x + sublayer(x))``, the arrangement of Vaswani et al. 2017.

    >>> import jax.numpy as jnp
    >>> post_norm(jnp.array(4.0), lambda x: 10 * x, lambda x: x / 4).item()  # (4 + 10 4) / 4
    11.0
    """
    return norm(x + sublayer(x))


def sandwich_norm(x: jax.Array, sublayer: Sublayer, norms: Iterable[Sublayer]) -> jax.Array:
    """Returns ``x + after(sublayer(before(x)))``, which also bounds a sublayer's output (Ding et al. 2021; Gemma 2).

    >>> import jax.numpy as jnp
    >>> sandwich_norm(jnp.array(4.0), lambda x: 10 * x, (lambda x: x / 4, lambda x: x / 5)).item()  # 4 + 10 (4 / 4) / 5
    6.0
    """
    before, after = norms
    return x + after(sublayer(before(x)))


def deep_norm(alpha: float) -> Arrangement:
    """Returns the arrangement ``norm(alpha x + sublayer(x))``, a post-norm that trains at a depth of 1,000 layers.

    Wang et al. 2022, "DeepNet: scaling Transformers to 1,000 layers". `deep_norm_gains` returns the paper's `alpha` and
    the matching gain of the initial values.

    >>> import jax.numpy as jnp
    >>> deep_norm(3.0)(jnp.array(4.0), lambda x: 10 * x, lambda x: x / 4).item()  # (3 4 + 10 4) / 4
    13.0
    """
    return lambda x, sublayer, norm: norm(alpha * x + sublayer(x))


class DeepNormGains(NamedTuple):
    """The constants of `deep_norm`: the factor of the skip path, and the gain of initial kernels.

    The gain `beta` applies to the value, output and feed-forward kernels.
    """

    alpha: float
    beta: float


def deep_norm_gains(num_encoder_layers: int, num_decoder_layers: int) -> tuple[DeepNormGains, DeepNormGains]:
    """Returns the gains of the encoder and of the decoder (Wang et al. 2022, table 2).

    A depth of 0 for either means a model with only the other.

    Raises:
      ValueError: a depth is below 0, or both are 0.

    >>> encoder, decoder = deep_norm_gains(6, 6)
    >>> [round(x, 3) for x in (*encoder, *decoder)]
    [1.418, 0.497, 2.06, 0.343]
    """
    n, m = num_encoder_layers, num_decoder_layers
    if n < 0 or m < 0 or n + m == 0:
        raise ValueError(f"the numbers of layers must be at least 0 and not both 0, got {n} and {m}")
    if n and m:
        encoder = DeepNormGains(0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16))
        return encoder, DeepNormGains((3 * m) ** (1 / 4), (12 * m) ** (-1 / 4))
    single = DeepNormGains((2 * (n or m)) ** (1 / 4), (8 * (n or m)) ** (-1 / 4))
    return single, single
