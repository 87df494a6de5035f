"""Convolution along a sequence, the layer with which attention is compared (Gehring et al. 2017; van den Oord 2016)."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float


def causal_convolution(
    x: Float[Array, "B T D"],
    kernel: Float[Array, "K D E"],
    bias: Float[Array, " E"] | None = None,
    *,
    dilation: int = 1,
) -> Float[Array, "B T E"]:
    r"""Computes a causal convolution: each position sees K positions, `dilation` apart, up to itself.

    .. math:: y_t = \sum_{k=0}^{K-1} x_{t - k \cdot dilation} W_k + b

    Nothing comes before the start. Layers with dilations :math:`1, K, K^2, \dots` reach :math:`K^m` positions after m
    layers, plain ones :math:`m (K - 1) + 1`.

    Raises:
      ValueError: the kernel is empty, or `dilation` is below 1.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1)
    >>> causal_convolution(x, jnp.array([1.0, 10.0]).reshape(2, 1, 1), dilation=2).ravel().tolist()
    [1.0, 2.0, 13.0, 24.0]
    """
    if kernel.shape[0] < 1 or dilation < 1:
        raise ValueError(f"a kernel and its dilation must be at least 1 long, got {kernel.shape[0]} and {dilation}")
    y = jax.lax.conv_general_dilated(
        x,
        kernel[::-1],
        window_strides=(1,),
        padding=[((kernel.shape[0] - 1) * dilation, 0)],
        rhs_dilation=(dilation,),
        dimension_numbers=("NHC", "HIO", "NHC"),
    )
    return y if bias is None else y + bias[None, None]
