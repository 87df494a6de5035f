"""Convolution along a sequence (Gehring et al. 2017; van den Oord 2016) and over images (LeCun 1998), and pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxformer.functional.feed_forward import add_shared
from jaxformer.functional.tokens import clear_padding

DIMENSIONS = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC")}
"""The dimension orders of input, kernel and output, by the number of spatial dimensions."""


def convolution(
    x: Float[Array, "B *T D"],
    kernel: Float[Array, "*K D E"],
    bias: Float[Array, " E"] | None = None,
    *,
    stride: int = 1,
    dilation: int = 1,
    causal: bool = False,
    padding: Literal["same", "valid"] = "same",
    valid: Bool[Array, "B ..."] | None = None,
) -> Float[Array, "B *U E"]:
    r"""Computes a convolution along a sequence (T), or over the rows and columns of images (T1, T2).

    .. math:: y_u = \sum_{k=0}^{K-1} x_{u \cdot stride + k \cdot dilation - p} W_k + b

    The offset p is :math:`\lfloor (K - 1) dilation / 2 \rfloor`, so that a position sees equally far in both
    directions, or :math:`(K - 1) dilation` if `causal`, so that it sees only the past and itself. The input is padded
    with zeros, and there are :math:`\lceil T / stride \rceil` outputs. With ``padding="valid"`` p is 0 and no window
    reaches beyond the end. In two dimensions the same holds for rows and for columns.

    To copy PyTorch weights, pass ``weight.permute(2, 1, 0)`` of a ``Conv1d`` or ``weight.permute(2, 3, 1, 0)`` of a
    ``Conv2d`` as `kernel`; its ``padding=K // 2`` with odd K and dilation 1 is "same". Parameters are cast to the dtype
    of `x`.

    Args:
      valid: True where a position is not padding; default: everywhere. Padding is read as 0, even if it holds NaN or
        Inf. Output u is 0 if position ``u * stride`` is padding, and the gradient of padding is 0.

    Raises:
      ValueError: the kernel is empty, `stride` or `dilation` is below 1, shapes do not match, `causal` is given for
        images, or ``padding="valid"`` with `valid` or `causal`.

    >>> x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1)
    >>> kernel = jnp.array([10.0, 1.0]).reshape(2, 1, 1)
    >>> convolution(x, kernel, dilation=2, causal=True).ravel().tolist()
    [1.0, 2.0, 13.0, 24.0]
    >>> convolution(x, kernel, dilation=2).ravel().tolist()
    [2.0, 13.0, 24.0, 30.0]
    >>> image = jnp.arange(9.0).reshape(1, 3, 3, 1)
    >>> convolution(image, jnp.ones((2, 2, 1, 1)), padding="valid")[0, ..., 0].tolist()
    [[8.0, 12.0], [20.0, 24.0]]
    """
    _check(x, kernel, bias, valid)
    for size in kernel.shape[:-2]:
        _check_sizes(size, dilation)
    if padding not in ("same", "valid"):
        raise ValueError(f"padding must be same or valid, got {padding!r}")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    if (causal and x.ndim > 3) or (padding == "valid" and (causal or valid is not None)):
        raise ValueError("causal is only for sequences, and padding='valid' excludes causal and valid")
    x = clear_padding(x, valid)  # before the product: 0 times NaN is NaN
    reaches = [(size - 1) * dilation for size in kernel.shape[:-2]]
    befores = [reach if causal else reach // 2 for reach in reaches]
    every = (slice(None), *[slice(None, None, stride)] * len(reaches))  # the positions of the outputs
    kernel = kernel.astype(x.dtype)
    if not any(reaches):  # a single product; XLA's strided gradient would multiply by zeros
        y = x[every] @ kernel.reshape(kernel.shape[-2:])
    else:
        if x.ndim == 4 and x.shape[-1] == 3 and stride == 1:  # takes a third of the time of XLA's kernel gradient
            zero = jnp.zeros((), x.dtype)
            widened = lambda z, axis: jax.lax.pad(z, zero, [(0, int(a == axis), 0) for a in range(4)])
            x, kernel = widened(x, 3), widened(kernel, 2)
        y = jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(stride,) * len(reaches),
            padding="VALID" if padding == "valid" else [(p, r - p) for p, r in zip(befores, reaches, strict=True)],
            rhs_dilation=(dilation,) * len(reaches),
            dimension_numbers=DIMENSIONS[len(reaches)],
        )
    if bias is not None:
        y = add_shared(y, bias)
    return y if valid is None else clear_padding(y, valid[every])


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


def _check(x: Array, kernel: Array, bias: Array | None, valid: Array | None) -> None:
    if x.ndim != kernel.ndim or x.ndim - 2 not in DIMENSIONS or kernel.shape[-2] != x.shape[-1]:
        expected = f"[{'K, ' * (x.ndim - 2)}{x.shape[-1]}, E]"
        raise ValueError(f"kernel must have shape {expected} for x {list(x.shape)}, got {list(kernel.shape)}")
    expected = {"bias": (bias, kernel.shape[-1:]), "valid": (valid, x.shape[:-1])}
    for name, (array, shape) in expected.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(array.shape)}")


def _check_sizes(kernel_size: int, dilation: int) -> None:
    if kernel_size < 1 or dilation < 1:
        raise ValueError(f"kernel size and dilation must be at least 1, got {kernel_size} and {dilation}")


def max_pool(x: Float[Array, "B *T D"], size: int, *, stride: int | None = None) -> Float[Array, "B *U D"]:
    """Computes the maximum of each feature in windows of `size` positions, or of ``size x size`` pixels.

    Windows start `stride` positions apart (`size` by default) and do not extend past the end, as in PyTorch.

    Raises:
      ValueError: the window is empty or larger than the input, or the stride is below 1.

    >>> max_pool(jnp.array([1.0, 3.0, 2.0, 5.0, 9.0]).reshape(1, 5, 1), 2).ravel().tolist()
    [3.0, 5.0]
    """
    return _windows(x, size, stride, -np.inf, jax.lax.max)


def average_pool(x: Float[Array, "B *T D"], size: int, *, stride: int | None = None) -> Float[Array, "B *U D"]:
    """Computes the mean of each feature in windows; see `max_pool`. The sum is float32.

    Raises:
      ValueError: the window is empty or larger than the input, or the stride is below 1.

    >>> average_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), 2)[0, ..., 0].tolist()
    [[2.5, 4.5], [10.5, 12.5]]
    """
    total = _windows(x.astype(jnp.float32), size, stride, 0.0, jax.lax.add)
    return (total / size ** (x.ndim - 2)).astype(x.dtype)


def _windows(x: Array, size: int, stride: int | None, start: float, combine: Callable[[Array, Array], Array]) -> Array:
    if stride is None:
        stride = size
    if min(size, stride) < 1 or size > min(x.shape[1:-1]):
        raise ValueError(
            f"a window of 1 to {min(x.shape[1:-1])} positions must move by 1 or more, got {size} by {stride}"
        )
    dims = x.ndim - 2
    initial = np.asarray(start, x.dtype)  # a constant, from which JAX recognizes the operation and its derivative
    return jax.lax.reduce_window(x, initial, combine, (1, *[size] * dims, 1), (1, *[stride] * dims, 1), "VALID")
