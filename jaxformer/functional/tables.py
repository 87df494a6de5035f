"""A table of vectors that a batch looks up and is scored by, on one device or on many."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer import axes
from jaxformer.axes import constrain


def table_copies(
    table: Float[Array, "V D"], *, rows: int, length: int = 1, dtype: jnp.dtype
) -> Float[Array, "G C V D"]:
    """A copy of a table for each of G groups of a batch's rows and each of C parts of its length, as devices have them.

    Each device uses its own copy, so the gradients of all uses are added where they arise, and summed over devices
    once: a table that source, target and output share would otherwise be sent three times in a step.

    Args:
      rows: of the batch; where the devices do not divide them, there is one group.
      length: of the sequences, or what those of several uses have in common; likewise.
      dtype: what the copies are used in.  Their values are rounded to it, for less to be sent; they and their
        gradients are float32.

    >>> table_copies(jnp.ones((5, 2)), rows=4, dtype=jnp.dtype("bfloat16")).shape
    (1, 1, 5, 2)
    """
    groups, parts = axes.pieces("batch"), axes.pieces("length")
    number = groups if rows % groups == 0 else 1, parts if length % parts == 0 else 1
    return _copies(number, dtype, table.astype(jnp.float32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _copies(number: tuple[int, int], dtype: jnp.dtype, table: Array) -> Array:
    whole = constrain(table.astype(dtype), "vocab", None).astype(table.dtype)
    return constrain(jnp.broadcast_to(whole, (*number, *table.shape)), "batch", "length", "vocab", None)


def _copies_forward(number, dtype, table):
    return _copies(number, dtype, table), None


def _copies_backward(number, dtype, _, d_copies):
    # Placed like the table, not like its copies: each device needs no more than its piece of the sum.
    d_copies = constrain(d_copies, "batch", "length", "vocab", None)
    return (constrain(d_copies.sum((0, 1)), "vocab", "model"),)


_copies.defvjp(_copies_forward, _copies_backward)


def lookup(copies: Float[Array, "G C V D"], tokens: Int[Array, "B ..."]) -> Float[Array, "B ... D"]:
    """``table[tokens]``, each group of rows and part of their length in its own copy.  Token ids must be below V.

    Args:
      copies: of `table_copies`, for as many rows, and a length that divides theirs.

    >>> copies = table_copies(jnp.eye(3), rows=2, dtype=jnp.dtype("float32"))
    >>> lookup(copies, jnp.array([[2], [0]])).tolist()
    [[[0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0]]]
    """
    groups, parts = copies.shape[:2]
    cut = tokens.reshape(groups, tokens.shape[0] // groups, parts, -1)
    of_part = jax.vmap(lambda table, tokens: table[tokens], in_axes=(0, 1), out_axes=1)
    return jax.vmap(of_part)(copies, cut).reshape(*tokens.shape, -1)
