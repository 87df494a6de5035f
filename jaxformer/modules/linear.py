"""Linear maps."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.axes import Axes
from jaxformer.modules.initializers import xavier_uniform


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
        self.bias = nnx.Param(jnp.zeros(out_features, jnp.float32), axes=axes[1:]) if bias else None

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        return functional.linear(x, self.kernel[...], None if self.bias is None else self.bias[...])
