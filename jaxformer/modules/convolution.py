"""Convolutions along a sequence, and stacks of them, plain or dilated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.feed_forward import Activation
from jaxformer.modules.initializers import xavier_uniform


class Convolution(nnx.Module):
    """`functional.convolution` with its kernel ``[K, D, E]`` and bias."""

    def __init__(
        self,
        num_in: int,
        num_out: int,
        *,
        kernel_size: int = 3,
        dilation: int = 1,
        causal: bool = False,
        bias: bool = True,
        rngs: nnx.Rngs,
    ):
        """Draws the parameters.

        Raises:
          ValueError: `kernel_size` or `dilation` is below 1.
        """
        functional.receptive_field(kernel_size, [dilation])  # checks both
        fans = {"fan_in": kernel_size * num_in, "fan_out": kernel_size * num_out}
        kernel = xavier_uniform(rngs.params(), (kernel_size, num_in, num_out), **fans)
        self.kernel = nnx.Param(kernel, axes=(None, "model", "hidden"))
        self.bias = nnx.Param(jnp.zeros(num_out), axes=("hidden",)) if bias else None
        self.dilation, self.causal = dilation, causal

    def __call__(
        self, x: Float[Array, "B T D"], *, valid: Bool[Array, "B T"] | None = None, key: jax.Array | None = None
    ) -> Float[Array, "B T E"]:
        """Returns the convolution; padding (`valid` False) changes nothing and gets 0. There is no dropout."""
        del key
        bias = None if self.bias is None else self.bias[...]
        options = {"dilation": self.dilation, "causal": self.causal, "valid": valid}
        return constrain(functional.convolution(x, self.kernel[...], bias, **options), "batch", "length", "model")


class ConvolutionStack(nnx.Module):
    """Residual convolutions, ``x + activation(convolution(x))``, whose dilations grow: 1, growth, growth^2, ...

    With ``growth=1`` every layer is plain and m layers see ``m (K - 1) + 1`` positions. With ``growth=kernel_size``
    they see ``K^m`` (van den Oord et al. 2016; Bai et al. 2018).
    """

    def __init__(
        self,
        d_model: int,
        num_layers: int,
        *,
        kernel_size: int = 3,
        growth: int = 1,
        causal: bool = False,
        activation: Activation = functional.relu,
        rngs: nnx.Rngs,
    ):
        """Creates the layers.

        Raises:
          ValueError: `num_layers`, `kernel_size` or `growth` is below 1.
        """
        if num_layers < 1 or growth < 1:
            raise ValueError(f"num_layers and growth must be at least 1, got {num_layers} and {growth}")
        self.dilations = tuple(growth**i for i in range(num_layers))
        options = {"kernel_size": kernel_size, "causal": causal, "rngs": rngs}
        self.layers = nnx.Dict(
            {f"{i}": Convolution(d_model, d_model, dilation=d, **options) for i, d in enumerate(self.dilations)}
        )
        self.kernel_size, self.activation = kernel_size, activation

    @property
    def receptive_field(self) -> int:
        """The number of positions that a position sees."""
        return functional.receptive_field(self.kernel_size, self.dilations)

    def __call__(
        self, x: Float[Array, "B T D"], *, valid: Bool[Array, "B T"] | None = None, key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """Returns the states after the last layer; padding (`valid` False) changes nothing and gets 0."""
        del key
        if valid is not None:
            x = jnp.where(valid[..., None], x, 0)
        for i in range(len(self.dilations)):
            x = x + self.activation(self.layers[f"{i}"](x, valid=valid))
        return x if valid is None else jnp.where(valid[..., None], x, 0)
