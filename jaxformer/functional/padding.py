"""Padding that has no effect: its contents may be NaN, and 0 times NaN is NaN, so products with 0 do not remove it."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from jaxformer import masks


def clear_padding(x: Shaped[Array, "*batch ..."], valid: Bool[Array, "*batch"] | None) -> Shaped[Array, "*batch ..."]:
    """Replaces padding by 0; without `valid`, nothing is padding.

    >>> clear_padding(jnp.array([[1.0, 2.0], [jnp.nan, jnp.inf]]), jnp.array([True, False])).tolist()
    [[1.0, 2.0], [0.0, 0.0]]
    """
    if valid is None:
        return x
    return jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - valid.ndim)), x, 0)


def everywhere(where: Bool[Array, "*batch"] | None, shape: tuple[int, ...]) -> Bool[Array, "*batch"]:
    """Returns `where`, or True in the given shape, its default."""
    return jnp.ones(shape, bool) if where is None else where


def padding_mask(valid: Bool[Array, "B S"] | None) -> masks.Mask | None:
    """Returns the mask that hides padding, if there is any."""
    return None if valid is None else masks.padding(valid)
