"""Linear maps and the initialiser that every kernel uses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.axes import Axes


def xavier_uniform(key: jax.Array, shape: tuple[int, ...], *, fan_in: int, fan_out: int) -> jax.Array:
    """Uniform in ``+-sqrt(6 / (fan_in + fan_out))`` (Glorot and Bengio 2010), for kernels that stack matrices."""
    limit = (6 / (fan_in + fan_out)) ** 0.5
    return jax.random.uniform(key, shape, jnp.float32, -limit, limit)


class Linear(nnx.Module):
    """``x kernel + bias``."""

    def __init__(self, num_in: int, num_out: int, *, bias: bool = True, axes: Axes = (None, None), rngs: nnx.Rngs):
        kernel = xavier_uniform(rngs.params(), (num_in, num_out), fan_in=num_in, fan_out=num_out)
        self.kernel = nnx.Param(kernel, axes=axes)
        self.bias = nnx.Param(jnp.zeros(num_out), axes=axes[1:]) if bias else None

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        return functional.linear(x, self.kernel[...], None if self.bias is None else self.bias[...])
