"""Convolutions along a sequence or over images, and stacks of them, plain or dilated."""

from __future__ import annotations

import functools
import math
from typing import Literal

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional
from jaxformer.axes import AxisName, constrain
from jaxformer.functional.feed_forward import Activation
from jaxformer.functional.tokens import clear_padding
from jaxformer.modules.layers import value_of, xavier_uniform, zeros_param


class Convolution(nnx.Module):
    """`functional.convolution` with its kernel, ``[K, D, E]`` or ``[K1, K2, D, E]`` for images, and bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        kernel_size: int | tuple[int, int] = 3,
        stride: int = 1,
        dilation: int = 1,
        causal: bool = False,
        padding: Literal["same", "valid"] = "same",
        bias: bool = True,
        axes: tuple[AxisName | None, AxisName | None] = ("model", "hidden"),
        rngs: nnx.Rngs,
    ):
        """Initializes the parameters.

        Args:
          kernel_size: the length of the kernel for sequences, or its height and width for images.
          axes: the logical axes of the inputs and the outputs.

        Raises:
          ValueError: `kernel_size` or `dilation` is below 1.
        """
        sizes = (kernel_size,) if isinstance(kernel_size, int) else kernel_size
        functional.receptive_field(min(sizes), [dilation])  # checks both
        fans = {"fan_in": math.prod(sizes) * in_features, "fan_out": math.prod(sizes) * out_features}
        kernel = xavier_uniform(rngs.params(), (*sizes, in_features, out_features), **fans)
        self.kernel = nnx.Param(kernel, axes=(*[None] * len(sizes), *axes))
        self.bias = zeros_param(out_features, axes[1:], exists=bias)
        self.stride, self.dilation, self.causal = stride, dilation, causal
        self.padding: Literal["same", "valid"] = padding

    def __call__(
        self, x: Float[Array, "B *T D"], *, valid: Bool[Array, "B ..."] | None = None, key: jax.Array | None = None
    ) -> Float[Array, "B *U E"]:
        """Returns the convolution; padding (`valid` False) has no effect and outputs 0. Dropout is not supported."""
        run = functools.partial(functional.convolution, stride=self.stride, dilation=self.dilation, causal=self.causal)
        y = run(x, self.kernel[...], value_of(self.bias), padding=self.padding, valid=valid)
        return constrain(y, "batch", "length", *[None] * (y.ndim - 3), "model")


class ConvolutionStack(nnx.Module):
    """Residual convolutions, ``x + activation(convolution(x))``, with growing dilations: 1, growth, growth^2, ...

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
        layer = functools.partial(Convolution, d_model, d_model, kernel_size=kernel_size, causal=causal, rngs=rngs)
        self.layers = nnx.Dict({f"{i}": layer(dilation=dilation) for i, dilation in enumerate(self.dilations)})
        self.kernel_size, self.activation = kernel_size, activation

    @property
    def receptive_field(self) -> int:
        """The number of input positions that each output position sees."""
        return functional.receptive_field(self.kernel_size, self.dilations)

    def __call__(
        self, x: Float[Array, "B T D"], *, valid: Bool[Array, "B T"] | None = None, key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """Returns the states after the last layer; padding (`valid` False) has no effect and outputs 0."""
        x = clear_padding(x, valid)
        for i in range(len(self.dilations)):
            x = x + self.activation(self.layers[f"{i}"](x, valid=valid))
        return clear_padding(x, valid)
