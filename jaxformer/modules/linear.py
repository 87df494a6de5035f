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
        num_in: int,
        num_out: int,
        *,
        bias: bool = True,
        gain: float = 1.0,
        axes: Axes = (None, None),
        rngs: nnx.Rngs,
    ):
        kernel = xavier_uniform(rngs.params(), (num_in, num_out), fan_in=num_in, fan_out=num_out)
        self.kernel = nnx.Param(kernel * gain, axes=axes)
        self.bias = nnx.Param(jnp.zeros(num_out), axes=axes[1:]) if bias else None

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        return functional.linear(x, self.kernel[...], None if self.bias is None else self.bias[...])
