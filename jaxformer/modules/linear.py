"""Linear maps."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.axes import Axes
from jaxformer.modules.initializers import xavier_uniform


def zeros_param(shape: int | tuple[int, ...], axes: Axes, *, exists: bool) -> nnx.Param | None:
    """Returns a parameter that starts from 0, such as a bias; None for a layer without it."""
    return nnx.Param(jnp.zeros(shape, jnp.float32), axes=axes) if exists else None


def value_of(param: nnx.Param | None) -> Array | None:
    """Returns the array of a parameter that a layer may lack."""
    return None if param is None else param[...]


class Linear(nnx.Module):
    """``x kernel + bias``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        gain: float = 1.0,
        axes: Axes = (None, None),
        rngs: nnx.Rngs,
    ):
        kernel = xavier_uniform(rngs.params(), (in_features, out_features), fan_in=in_features, fan_out=out_features)
        self.kernel = nnx.Param(kernel * gain, axes=axes)
        self.bias = zeros_param(out_features, axes[1:], exists=bias)

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        return functional.linear(x, self.kernel[...], value_of(self.bias))
