"""Embedding tables that also score tokens, with one copy for each group of devices."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Integer, PyTree

from jaxformer import functional
from jaxformer.axes import Axes, constrain, has_known_values, num_shards
from jaxformer.functional.linear_loss import logits_per_chunk
from jaxformer.functional.losses import LogitLoss


def with_copies(
    params: PyTree[Array], axes: PyTree[Axes], batch: PyTree[Array], *, dtype: DTypeLike = "float32"
) -> PyTree[Array]:
    """Returns parameters in which embedding tables are `table_copies`, for the loss of a batch on a mesh.

    The source, the target and a tied output then share the copies, so that the gradient of the table is sent once. Call
    it where the rules are active, inside the function that is differentiated. A model takes either form; without it,
    each use makes copies of its own.

    Args:
      axes: the names of the parameters' dimensions, ``net.axes``.
      batch: the arrays that the loss reads; those of integers ``[B, T, ...]`` determine the number of copies.
      dtype: the dtype of the model's activations.

    >>> copied = with_copies({"table": jnp.eye(3)}, {"table": ("vocab", "model")}, jnp.ones((2, 5), int))
    >>> copied["table"].shape
    (1, 1, 3, 3)
    """
    ids = [x.shape for x in jax.tree.leaves(batch) if x.ndim > 1 and jnp.issubdtype(x.dtype, jnp.integer)]
    if not ids:
        return params
    rows, length = (math.gcd(*(shape[dim] for shape in ids)) for dim in (0, 1))
    copy = functools.partial(table_copies, rows=rows, length=length, dtype=jnp.dtype(dtype))
    return jax.tree.map(lambda x, names: copy(x) if names == ("vocab", "model") else x, params, axes)


def table_copies(
    table: Float[Array, "V D"], *, rows: int, length: int = 1, dtype: jnp.dtype
) -> Float[Array, "G C V D"]:
    """Returns a copy of a table for each of G groups of a batch's rows and each of C parts of its length.

    G and C are the numbers of devices over which the active rules shard the batch and the length. Each device uses its
    own copy, so the gradients of all uses are added locally and are summed over devices once. Otherwise the gradient of
    a table that source, target and output share would be sent three times per step.

    Args:
      rows: the number of rows of the batch; there is one group if it is not divisible by the number of devices.
      length: the length of the sequences, or a common divisor of the lengths of several uses; there is one part if it
        is not divisible.
      dtype: the dtype in which the copies are used. Their values are rounded to it, so that less is sent; the copies
        and their gradients are float32.

    >>> table_copies(jnp.ones((5, 2)), rows=4, dtype=jnp.dtype("bfloat16")).shape
    (1, 1, 5, 2)
    """
    shards = (rows, num_shards("batch")), (length, num_shards("length"))
    groups, parts = (count if size % count == 0 else 1 for size, count in shards)
    return _copies((groups, parts), dtype, table.astype(jnp.float32))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _copies(counts: tuple[int, int], dtype: jnp.dtype, table: Array) -> Array:
    gathered = constrain(table.astype(dtype), "vocab", None).astype(table.dtype)
    return constrain(jnp.broadcast_to(gathered, (*counts, *table.shape)), "batch", "length", "vocab", None)


@_copies.defjvp
def _copies_jvp(counts, dtype, primals, tangents):
    # The transpose of this sum is placed like the table, not like its copies: each device needs no more than its shard.
    tangent = constrain(tangents[0], "vocab", "model")
    tangent = jnp.broadcast_to(tangent, (*counts, *tangent.shape))
    return _copies(counts, dtype, *primals), constrain(tangent, "batch", "length", "vocab", None)


def lookup(
    copies: Float[Array, "G C V D"], tokens: Int[Array, "B ..."], *, where: Bool[Array, "B ..."] | None = None
) -> Float[Array, "B ... D"]:
    """Returns ``table[tokens]``; each group of rows and each part of the length reads its own copy.

    Token ids must be in [0, V). Under tracing they are not checked: an id of at least V reads the last row,
    and a negative one counts from the end.

    Args:
      copies: the result of `table_copies` for this number of rows, and for a length that divides that of `tokens`.
      where: True where an id counts, by default everywhere; other ids, such as padding, are not checked.

    Raises:
      ValueError: an id is outside of [0, V); the message has the one farthest outside.

    >>> copies = table_copies(jnp.eye(3), rows=2, dtype=jnp.dtype("float32"))
    >>> lookup(copies, jnp.array([[2], [0]])).tolist()
    [[[0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0]]]
    """
    _check_ids(tokens, where, copies.shape[2])
    groups, parts = copies.shape[:2]
    grouped = tokens.reshape(groups, tokens.shape[0] // groups, parts, math.prod(tokens.shape[1:]) // parts)
    of_part = jax.vmap(lambda table, tokens: table[tokens], in_axes=(0, 1), out_axes=1)
    return jax.vmap(of_part)(copies, grouped).reshape(*tokens.shape, copies.shape[-1])


def _check_ids(ids: Array, where: Array | None, vocab_size: int) -> None:
    """Checks the ids that count, if their values are available: neither traced nor held by other processes."""
    if not has_known_values(ids, where):
        return
    values = np.asarray(ids).astype(np.int64)
    if where is not None:
        values = values[np.asarray(where)]
    if (outside := values[(values < 0) | (values >= vocab_size)]).size:
        worst = outside[np.maximum(-outside, outside - vocab_size + 1).argmax()]
        raise ValueError(
            f"token ids (or token types) must be in [0, V = {vocab_size}), the rows of their table, got {worst}"
        )


def linear_loss(
    x: Float[Array, "B T D"],
    table: Float[Array, "V D"] | Float[Array, "G C V D"],
    labels: Integer[Array, "B T"],
    loss: LogitLoss,
    *,
    where: Bool[Array, "B T"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Computes `functional.linear_loss` on a mesh; the table and its gradient are sent once, not per chunk.

    Args:
      table: the output projection, with a row for each label, or the `table_copies` that all its uses share.
      loss, where: see `functional.linear_loss`.
      chunk: the number of positions to compute at a time, over all devices; by default as many as fit in their memory.

    >>> labels = jnp.array([[0, 1, 2]])
    >>> total, count = linear_loss(jnp.ones((1, 3, 2)), jnp.zeros((4, 2)), labels, functional.CrossEntropy())
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """
    if table.ndim == 2:
        table = table_copies(table, rows=x.shape[0] // loss.passes, length=x.shape[1], dtype=x.dtype)
    if chunk is None:
        chunk = logits_per_chunk() * num_shards("batch", "length", "vocab") // table.shape[2]
    return functional.linear_loss(x, table, labels, loss, where=where, chunk=chunk)
