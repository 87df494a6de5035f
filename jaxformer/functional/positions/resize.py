"""Shortened and lengthened tables of learned positions."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
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
      method: the way to make the table.

        * ``truncate`` keeps the first rows.
        * ``extend`` appends new rows, drawn from `key` with the standard deviation of the old ones, or zeros without a
          key. Short inputs do not change.
        * ``copy`` repeats the table, so that the order within L positions remains known beyond them.
        * ``interpolate`` stretches the L rows linearly over `length` positions and keeps both ends, as for images of
          another size (Dosovitskiy et al. 2021, section 3.2). Every position changes and none is new.

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
