"""Pooling: the maximum or the mean of windows of a sequence or an image."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


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
