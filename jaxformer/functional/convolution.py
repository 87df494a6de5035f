"""Convolution along a sequence, the layer with which attention is compared (Gehring et al. 2017; van den Oord 2016)."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def convolution(
    x: Float[Array, "B T D"],
    kernel: Float[Array, "K D E"],
    bias: Float[Array, " E"] | None = None,
    *,
    dilation: int = 1,
    causal: bool = False,
    valid: Bool[Array, "B T"] | None = None,
) -> Float[Array, "B T E"]:
    r"""Computes a convolution along T: each position sees K positions, `dilation` apart.

    .. math:: y_t = \sum_{k=0}^{K-1} x_{t + k \cdot dilation - p} W_k + b

    The offset p is :math:`\lfloor (K - 1) dilation / 2 \rfloor`, so that a position sees both sides alike, or
    :math:`(K - 1) dilation` if `causal`, so that it sees the past and itself. There are zeros before the start and
    after the end. Kernels have PyTorch's order: ``weight.transpose(2, 1, 0)`` is `kernel`, and the offset is that of
    ``padding="same"``. Parameters are cast to the dtype of `x`.

    Args:
      valid: True where a position is real; default: everywhere. Padding counts as zeros, whatever it holds, NaN and Inf
        included; its output and its gradient are 0.

    Raises:
      ValueError: the kernel is empty, `dilation` is below 1, or shapes do not fit.

    >>> x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1)
    >>> kernel = jnp.array([10.0, 1.0]).reshape(2, 1, 1)
    >>> convolution(x, kernel, dilation=2, causal=True).ravel().tolist()
    [1.0, 2.0, 13.0, 24.0]
    >>> convolution(x, kernel, dilation=2).ravel().tolist()
    [2.0, 13.0, 24.0, 30.0]
    """
    _check(x, kernel, bias, dilation, valid)
    if valid is not None:  # before the product: 0 times NaN is NaN
        x = jnp.where(valid[..., None], x, 0)
    reach = (kernel.shape[0] - 1) * dilation
    before = reach if causal else reach // 2
    y = jax.lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        window_strides=(1,),
        padding=[(before, reach - before)],
        rhs_dilation=(dilation,),
        dimension_numbers=("NHC", "HIO", "NHC"),
    )
    y = y if bias is None else y + bias.astype(x.dtype)[None, None]
    return y if valid is None else jnp.where(valid[..., None], y, 0)


def receptive_field(kernel_size: int, dilations: Iterable[int]) -> int:
    """Returns the number of positions that a position sees through a stack of convolutions with these dilations.

    Plain layers see :math:`m (K - 1) + 1` after m layers; dilations :math:`1, K, K^2, ...` see :math:`K^m`.

    Raises:
      ValueError: the kernel is empty, or a dilation is below 1.

    >>> receptive_field(3, [1, 1, 1]), receptive_field(3, [1, 3, 9])
    (7, 27)
    """
    reach = 0
    for dilation in dilations:
        _check_sizes(kernel_size, dilation)
        reach += (kernel_size - 1) * dilation
    return reach + 1


def _check(x: Array, kernel: Array, bias: Array | None, dilation: int, valid: Array | None) -> None:
    _check_sizes(kernel.shape[0], dilation)
    if kernel.shape[1] != x.shape[2]:
        raise ValueError(f"kernel must have shape [K, {x.shape[2]}, E] for x {list(x.shape)}, got {list(kernel.shape)}")
    expected = {"bias": (bias, kernel.shape[2:]), "valid": (valid, x.shape[:2])}
    for name, (array, shape) in expected.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(array.shape)}")


def _check_sizes(kernel_size: int, dilation: int) -> None:
    if kernel_size < 1 or dilation < 1:
        raise ValueError(f"a kernel and its dilation must be at least 1 long, got {kernel_size} and {dilation}")
