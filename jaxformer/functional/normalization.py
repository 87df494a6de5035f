"""Layer normalization, in both published forms, and its root-mean-square relative.  Statistics are float32."""

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
    r"""Gives each token zero mean and unit deviation over its features, then scales and shifts (Ba et al. 2016).

    ``form="variance"``:  :math:`\gamma (x-\mu) / \sqrt{\sigma^2+\epsilon} + \beta`, what libraries compute;
    ``form="deviation"``: :math:`\gamma (x-\mu) / (\sigma+\epsilon) + \beta`, also found in print.
    They differ where the deviation is of the size of epsilon.  The variance is the biased one (divided by D).

    Raises:
      ValueError: another `form`.

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(layer_norm(jnp.array([1.2, .6, -.2, .1]), jnp.ones(4))).round(2))
    [ 1.46  0.33 -1.18 -0.61]
    """
    wide = x.astype(jnp.float32)
    centered = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)
    if form == "variance":
        normal = centered * jax.lax.rsqrt(variance + epsilon)
    elif form == "deviation":
        # The square root has no finite slope at 0, where a constant token sits.
        safe = jnp.where(variance == 0, 1.0, variance)
        normal = centered / (jnp.where(variance == 0, 0.0, jnp.sqrt(safe)) + epsilon)
    else:
        raise ValueError(f"form must be 'variance' or 'deviation', got {form!r}")
    return _affine(normal, scale, bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*batch D"], scale: Float[Array, " D"], *, epsilon: float = 1e-6
) -> Float[Array, "*batch D"]:
    r"""Divides each token by its root mean square: :math:`\gamma x / \sqrt{\overline{x^2}+\epsilon}`.

    Zhang and Sennrich 2019, "Root mean square layer normalization".

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(rms_norm(jnp.array([3., 4., 0., 0.]), jnp.ones(4))).round(2))
    [1.2 1.6 0.  0. ]
    """
    wide = x.astype(jnp.float32)
    normal = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon)
    return _affine(normal, scale, None).astype(x.dtype)


def _affine(normal: Array, scale: Array, bias: Array | None) -> Array:
    lead = (1,) * (normal.ndim - 1)
    scaled = normal * scale.astype(jnp.float32).reshape(*lead, -1)
    return scaled if bias is None else scaled + bias.astype(jnp.float32).reshape(*lead, -1)
