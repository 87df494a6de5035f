"""Tables of learned positions, cut or lengthened for sequences of another length."""

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
    """A table for `length` positions, as part of loading or fine-tuning a model.

    ``truncate``: the first rows, for shorter sequences.  ``extend``: the rows there are, then new ones, drawn with
    the deviation of the old from `key`, or zeros without: short inputs see no change.  ``copy``: the rows there are,
    over and over, so that order within L places is known beyond them too.  ``interpolate``: the L rows
    stretched over `length` places, linearly, ends kept, as is done for images of another size (Dosovitskiy et al.
    2021, section 3.2): every position changes, none is new.

    Raises:
      ValueError: a length that the method does not lead to.

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
        place = jnp.linspace(0, old - 1, length)
        below = jnp.minimum(place.astype(jnp.int32), max(old - 2, 0))
        part = (place - below.astype(jnp.float32))[:, None]
        wide = table.astype(jnp.float32)
        return (wide[below] * (1 - part) + wide[jnp.minimum(below + 1, old - 1)] * part).astype(table.dtype)
    raise ValueError(f"method must be truncate, extend, copy or interpolate, got {method!r}")
