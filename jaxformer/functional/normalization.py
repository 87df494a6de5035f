"""Layer normalization in both published forms, and root-mean-square normalization, with statistics in float32."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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


def _affine(normalized: Array, scale: Array, bias: Array | None) -> Array:
    for name, x in (("scale", scale), ("bias", bias)):
        if x is not None and x.shape != normalized.shape[-1:]:
            raise ValueError(f"{name} must have shape [D] = {list(normalized.shape[-1:])}, got {list(x.shape)}")
    leading = (1,) * (normalized.ndim - 1)
    scaled = normalized * scale.astype(jnp.float32).reshape(*leading, -1)
    return scaled if bias is None else scaled + bias.astype(jnp.float32).reshape(*leading, -1)
