"""Learned positions, resized to other lengths or other grids of patches."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def resize_positions(
    table: Float[Array, "L D"],
    length: int,
    *,
    method: Literal["truncate", "extend", "copy", "interpolate"],
    key: jax.Array | None = None,
) -> Float[Array, "length D"]:
    """Returns a table for `length` positions, for loading or fine-tuning a model.

    Args:
      method: how to make the table.

        * ``truncate`` keeps the first rows.
        * ``extend`` appends new rows, drawn from `key` with the standard deviation of the old ones, or zeros without a
          key. Results for short inputs do not change.
        * ``copy`` repeats the table, so that the model still knows the order within each L positions.
        * ``interpolate`` stretches the L rows linearly over `length` positions and keeps both ends, as for images of
          another size (Dosovitskiy et al. 2021, section 3.2). Every position changes, and none is untrained.

    Raises:
      ValueError: the method is unknown, or cannot make a table of this length.

    >>> import jax.numpy as jnp
    >>> table = jnp.array([[0.], [2.], [4.]])
    >>> [resize_positions(table, 5, method=m).ravel().tolist() for m in ("extend", "copy", "interpolate")]
    [[0.0, 2.0, 4.0, 0.0, 0.0], [0.0, 2.0, 4.0, 0.0, 2.0], [0.0, 1.0, 2.0, 3.0, 4.0]]
    """
    old = table.shape[0]
    if length < 1 or (method == "truncate" and length > old) or (method in ("extend", "copy") and length < old):
        raise ValueError(f"cannot {method} a table of {old} positions to {length}")
    if method == "truncate":
        return table[:length]
    if method == "extend":
        shape = (length - old, table.shape[1])
        new = jnp.zeros(shape, table.dtype)
        if key is not None:
            new = (jax.random.normal(key, shape) * table.astype(jnp.float32).std()).astype(table.dtype)
        return jnp.concatenate([table, new])
    if method == "copy":
        return table[jnp.arange(length) % old]
    if method == "interpolate":
        position = jnp.linspace(0, old - 1, length)
        below = jnp.minimum(position.astype(jnp.int32), max(old - 2, 0))
        fraction = (position - below.astype(jnp.float32))[:, None]
        rows = table.astype(jnp.float32)
        return (rows[below] * (1 - fraction) + rows[jnp.minimum(below + 1, old - 1)] * fraction).astype(table.dtype)
    raise ValueError(f"method must be truncate, extend, copy or interpolate, got {method!r}")


def resize_grid_positions(
    table: Float[Array, "L D"],
    grid: tuple[int, int],
    new_grid: tuple[int, int],
    *,
    num_class_rows: int = 0,
    method: Literal["bilinear", "bicubic"] = "bilinear",
) -> Float[Array, "new_L D"]:
    """Returns a table for another grid of patches, for images of another size (Dosovitskiy et al. 2021, section 3.2).

    The rows of the table are the patches in row-major order, after `num_class_rows` rows that belong to no patch, such
    as the class token's, and stay unchanged.

    Args:
      grid, new_grid: numbers of patches down and across.
      method: "bilinear" keeps the corners of the grid in place (``align_corners=True`` in PyTorch; the order 1 of
        ``scipy.ndimage.zoom`` in the authors' code). "bicubic" is the method of Hugging Face, and of PyTorch with
        ``align_corners=False``: patches keep their share of the image, and the border is repeated.

    Raises:
      ValueError: the table does not have ``num_class_rows + rows * columns`` rows, a grid is empty, `num_class_rows` is
        negative, or the method is unknown.

    >>> import jax.numpy as jnp
    >>> table = jnp.array([[9.], [0.], [2.], [4.], [6.]])          # a class row, then 2 x 2 patches
    >>> resize_grid_positions(table, (2, 2), (2, 3), num_class_rows=1).ravel().tolist()
    [9.0, 0.0, 1.0, 2.0, 4.0, 5.0, 6.0]
    """
    if min(*grid, *new_grid) < 1:
        raise ValueError(f"a grid must have at least 1 x 1 patches, got {grid} and {new_grid}")
    if num_class_rows < 0:
        raise ValueError(f"num_class_rows must be at least 0, got {num_class_rows}")
    if table.shape[0] != num_class_rows + grid[0] * grid[1]:
        raise ValueError(
            f"a table of {grid[0]} x {grid[1]} patches and {num_class_rows} class rows must have "
            f"{num_class_rows + grid[0] * grid[1]} rows, got {table.shape[0]}"
        )
    patches = table[num_class_rows:].astype(jnp.float32).reshape(*grid, -1)
    if method == "bilinear":
        down, across = (functools.partial(resize_positions, length=length, method="interpolate") for length in new_grid)
        patches = jax.vmap(across)(jax.vmap(down, 1, 1)(patches))
    elif method == "bicubic":
        down, across = (_bicubic(*sizes) for sizes in zip(grid, new_grid, strict=True))
        patches = jnp.einsum("uh,vw,hwd->uvd", down, across, patches, precision="highest")
    else:
        raise ValueError(f"method must be bilinear or bicubic, got {method!r}")
    return jnp.concatenate([table[:num_class_rows], patches.reshape(-1, table.shape[1]).astype(table.dtype)])


def _bicubic(length: int, new_length: int) -> np.ndarray:
    """Returns the weights ``[new_length, length]`` of Keys' cubic convolution (1981) with a = -0.75."""
    position = (np.arange(new_length) + 0.5) * length / new_length - 0.5
    weights = np.zeros((new_length, length), np.float32)
    for offset in (-1, 0, 1, 2):
        index = np.floor(position).astype(int) + offset
        x = np.abs(position - index)
        near, far = (1.25 * x - 2.25) * x**2 + 1, ((-0.75 * x + 3.75) * x - 6) * x + 3
        np.add.at(weights, (np.arange(new_length), np.clip(index, 0, length - 1)), np.where(x <= 1, near, far))
    return weights
