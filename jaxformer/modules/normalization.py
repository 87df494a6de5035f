"""Normalization layers: the parameters of `functional.layer_norm` and `functional.rms_norm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.axes import AxisName

Norm: TypeAlias = Callable[[Array], Array]


class LayerNorm(nnx.Module):
    """`functional.layer_norm` with a learned scale (initially 1) and bias (initially 0)."""

    def __init__(self, d_model: int, *, epsilon: float = 1e-5, form: Literal["variance", "deviation"] = "variance"):
        self.scale = nnx.Param(jnp.ones(d_model, jnp.float32), axes=("model",))
        self.bias = nnx.Param(jnp.zeros(d_model, jnp.float32), axes=("model",))
        self.epsilon = epsilon
        self.form: Literal["variance", "deviation"] = form

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return functional.layer_norm(x, self.scale[...], self.bias[...], epsilon=self.epsilon, form=self.form)


class RMSNorm(nnx.Module):
    """`functional.rms_norm` with a learned scale (initially 1)."""

    def __init__(self, dim: int, *, epsilon: float = 1e-6, axis: AxisName = "model"):
        self.scale = nnx.Param(jnp.ones(dim, jnp.float32), axes=(axis,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return functional.rms_norm(x, self.scale[...], epsilon=self.epsilon)


def normalized(x: Array, norm: Norm | None) -> Array:
    """Returns the norm of `x`, or `x` itself where there is no norm."""
    return x if norm is None else norm(x)


class NormPair(nnx.Module):
    """The norms before and after a sublayer, as `functional.sandwich_norm` takes them."""

    def __init__(self, make: Callable[[], Norm]):
        self.before, self.after = make(), make()

    def __iter__(self) -> Iterator[Norm]:
        return iter((self.before, self.after))
