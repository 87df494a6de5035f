"""Layer and root-mean-square normalization with float32 statistics, and their places around residual connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.functional.feed_forward import scaled


def layer_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None,
    *,
    epsilon: float = 1e-5,
    form: Literal["variance", "deviation"] = "variance",
) -> Float[Array, "*batch D"]:
    r"""Gives each token zero mean and unit variance over its features, then scales and shifts (Ba et al. 2016).

    ``form="variance"`` is :math:`\gamma (x-\mu) / \sqrt{\sigma^2+\epsilon} + \beta`, the form of PyTorch and Flax.
    ``form="deviation"`` is :math:`\gamma (x-\mu) / (\sigma+\epsilon) + \beta`, which is also published. They differ if
    :math:`\sigma` is not much larger than :math:`\sqrt\epsilon`. The variance is the biased one (divided by D).

    Raises:
      ValueError: `form` is unknown, or `scale` or `bias` is not [D].

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(layer_norm(jnp.array([1.2, .6, -.2, .1]), jnp.ones(4))).round(2))
    [ 1.46  0.33 -1.18 -0.61]
    """
    features = x.astype(jnp.float32)
    centered = features - features.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)
    if form == "variance":
        normalized = centered * jax.lax.rsqrt(variance + epsilon)
    elif form == "deviation":
        # The square root has no finite gradient at 0, the variance of a constant token.
        safe = jnp.where(variance == 0, 1.0, variance)
        normalized = centered / (jnp.where(variance == 0, 0.0, jnp.sqrt(safe)) + epsilon)
    else:
        raise ValueError(f"form must be 'variance' or 'deviation', got {form!r}")
    return _affine(normalized, scale, bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*batch D"], scale: Float[Array, " D"], *, epsilon: float = 1e-6
) -> Float[Array, "*batch D"]:
    r"""Divides each token by its root mean square: :math:`\gamma x / \sqrt{\overline{x^2}+\epsilon}`.

    Zhang and Sennrich 2019, "Root mean square layer normalization".

    Raises:
      ValueError: `scale` is not [D].

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(rms_norm(jnp.array([3., 4., 0., 0.]), jnp.ones(4))).round(2))
    [1.2 1.6 0.  0. ]
    """
    features = x.astype(jnp.float32)
    normalized = features * jax.lax.rsqrt(jnp.square(features).mean(-1, keepdims=True) + epsilon)
    return _affine(normalized, scale, None).astype(x.dtype)


def qk_norm(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    scale: Float[Array, " H"],
    key_scale: Float[Array, " H"] | None = None,
    epsilon: float = 1e-6,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"]]:
    """Divides the queries and keys of each head by their root mean square, then scales them (QK-norm).

    Henry et al. 2020; Dehghani et al. 2023 (ViT-22B). The logits can no longer grow without bound in training.

    Args:
      scale: the scale of the queries, and of the keys unless `key_scale` is given.

    >>> import jax.numpy as jnp, numpy as np
    >>> query, key = qk_norm(jnp.full((1, 1, 1, 2), 100.0), jnp.full((1, 1, 1, 2), -3.0), scale=jnp.ones(2))
    >>> print(np.asarray(query[0, 0]).round(3), np.asarray(key[0, 0]).round(3))
    [[1. 1.]] [[-1. -1.]]
    """
    key_scale = scale if key_scale is None else key_scale
    return rms_norm(query, scale, epsilon=epsilon), rms_norm(key, key_scale, epsilon=epsilon)


def _affine(normalized: Array, scale: Array, bias: Array | None) -> Array:
    for name, x in (("scale", scale), ("bias", bias)):
        if x is not None and x.shape != normalized.shape[-1:]:
            raise ValueError(f"{name} must have shape [D] = {list(normalized.shape[-1:])}, got {list(x.shape)}")
    leading = (1,) * (normalized.ndim - 1)
    scaled = normalized * scale.astype(jnp.float32).reshape(*leading, -1)
    return scaled if bias is None else scaled + bias.astype(jnp.float32).reshape(*leading, -1)


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
    return lambda x, sublayer, norm: norm(scaled(x, alpha) + sublayer(x))


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
