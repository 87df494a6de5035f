"""Losses of logits that never exist all at once: they are computed in chunks, with their gradient in the same pass."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from jaxformer import targets
from jaxformer.axes import constrain, placed, vary_alike
from jaxformer.functional.losses import CrossEntropy, LogitLoss, check_labels, check_where
from jaxformer.functional.tokens import clear_padding, everywhere

ALIGNED = 16
"""A table's rows are padded to a multiple of this number on accelerators, as their matrix units require.

Otherwise XLA would copy the gradient of the logits, which is much larger, to pad it: GPT-2 has 50,257 rows.
"""


SumsT = TypeVar("SumsT")
OutputT = TypeVar("OutputT")


def logits_per_chunk() -> int:
    """Returns the number of logits that a device computes at a time: 2**22 for a CPU's cache, else 2**28 (1 GiB)."""
    return 1 << (22 if targets.devices()[0].platform == "cpu" else 28)


def linear_loss(
    x: Float[Array, "B T D"],
    table: Float[Array, "V D"] | Float[Array, "G C V D"],
    labels: Integer[Array, "B T"],
    loss: LogitLoss | None = None,
    *,
    where: Bool[Array, "B T"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns a loss of the logits ``x table^T``, (sum, count), without holding all of them.

    The logits of one chunk of positions at a time are computed, used and discarded. Their gradient is computed in the
    same pass, because the gradient of a sum is known up to a factor before the backward pass begins (Hsu et al. 2024,
    "Liger Kernel"). Memory is for one chunk instead of ``B T V`` logits. On a CPU, whose cache holds a chunk, it takes
    half the time.

    Args:
      x: states; of a loss that compares several passes over each sequence, in neighboring rows, as a model computes
        them from `duplicate_rows` of a batch, with equal labels.
      table: the output projection, with a row for each label. It is cast to the dtype of `x`; sums are float32. A table
        ``[G, C, V, D]`` has one copy for each of G groups of rows and C parts of the length, so that devices need not
        communicate (`jaxformer.sharding.linear_loss`).
      loss: by default `CrossEntropy()`.
      where: True for labels to count; other labels add nothing, and their `x` may hold anything. Labels outside of [0,
        V) are treated as by `cross_entropy`.
      chunk: the number of positions to compute at a time, over the full batch; by default as many as fit on the devices
        (see `logits_per_chunk`).

    Raises:
      ValueError: shapes do not match, `where` is not Boolean, or a label is not in [0, V) where it counts.

    >>> import jax.numpy as jnp
    >>> total, count = linear_loss(jnp.ones((1, 3, 2)), jnp.zeros((4, 2)), jnp.array([[0, 1, 2]]))
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """
    loss = loss or CrossEntropy()
    passes = loss.passes
    if x.shape[:2] != labels.shape or x.shape[2] != table.shape[-1] or x.shape[0] % passes:
        raise ValueError(
            f"shapes must be x [B, T, D], table [V, D], labels [B, T], with B a multiple of {passes}, got "
            f"{list(x.shape)}, {list(table.shape)}, {list(labels.shape)}"
        )
    check_where(where, labels.shape)
    # The gradient of the table is summed in float32, even if its dtype is narrower.
    copies = table.astype(jnp.float32)[None, None] if table.ndim == 2 else table
    check_labels(labels, where, table.shape[-2])
    (batch, length), (groups, parts, vocab_size, _) = labels.shape, copies.shape
    if targets.devices()[0].platform != "cpu" and not placed():
        copies = jnp.pad(copies, ((0, 0), (0, 0), (0, -vocab_size % ALIGNED), (0, 0)))
    where = everywhere(where, labels.shape)
    x = clear_padding(x, where)
    if passes > 1:  # [B, T, passes, D]: the labels of all passes are the same
        x = x.reshape(batch // passes, passes, length, x.shape[2]).swapaxes(1, 2)
        labels, where = labels[::passes], where[::passes]
    if chunk is None:
        chunk = logits_per_chunk() * groups * parts // vocab_size
    chunked = _Chunked(loss, _num_chunks(length, batch, parts, chunk), vocab_size)
    return _summed(chunked, x, copies, labels, where), where.astype(jnp.float32).sum()


def _num_chunks(length: int, batch: int, parts: int, chunk: int) -> int:
    """Returns the number of chunks of about `chunk` positions in a batch whose length is split into parts."""
    return max(1, -(-length // parts // max(1, chunk // max(1, batch * parts))))


class _Chunked(NamedTuple):
    """A loss of logits ``[G, C, n, V]``, whose columns from `vocab_size` on do not count, computed in chunks."""

    loss: LogitLoss
    num_chunks: int
    vocab_size: int

    def value(self, logits: Array, labels: Array, where: Array) -> Array:
        return self.loss.value(self._of_labels(logits, labels)[..., : self.vocab_size], labels, where)

    def value_and_gradient(self, logits: Array, labels: Array, where: Array) -> tuple[Array, Array]:
        shaped = self._of_labels(logits, labels)
        value, gradient = self.loss.value_and_gradient(shaped, labels, where, self.vocab_size)
        return value, gradient.reshape(logits.shape)

    def _of_labels(self, logits: Array, labels: Array) -> Array:
        """Returns the logits ``[G, C, m, V]`` of m labels, or ``[G, C, m, passes, V]``."""
        return logits if self.loss.passes == 1 else logits.reshape(*labels.shape, self.loss.passes, logits.shape[-1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _summed(loss: _Chunked, x: Array, copies: Array, labels: Array, where: Array) -> Array:
    """Returns a loss of the logits ``x table^T``, computed and discarded in chunks, with its gradient in the same pass.

    If there is only one group of rows, the counted positions are in the first chunks, and the other chunks are skipped.

    Args:
      x: states ``[B, T, D]``, or ``[B, T, P, D]`` with P rows of logits for each label.
      copies: the table, see `linear_loss`.
    """
    table, order = copies.astype(x.dtype), _counted_first(loss.num_chunks, copies, where)

    def visit(total, chunk):
        x, labels, where = chunk
        logits = jnp.einsum("gcnd,gcvd->gcnv", _rows(x), table, preferred_element_type=jnp.float32)
        return total + loss.value(logits, labels, where), None

    if order is not None:
        visit = _skipping(visit, lambda chunk: None)
    chunks = _split(loss.num_chunks, table, order, x, labels, where)
    return jax.lax.scan(visit, *vary_alike((jnp.float32(0), chunks, table))[:2])[0]


@_summed.defjvp
def _summed_jvp(loss, primals, tangents):
    """Computes the gradients of the sum; its backward pass only multiplies them by the upstream gradient."""
    total, *gradients = _value_and_gradients(loss, *primals)
    products = (
        (gradient.astype(jnp.float32) * tangent.astype(jnp.float32)).sum()
        for gradient, tangent in zip(gradients, tangents[:2], strict=True)
    )
    return total, sum(products)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value_and_gradients(loss: _Chunked, *arrays: Array) -> tuple[Array, Array, Array]:
    # A function with its own derivative rule is evaluated as a whole. Otherwise, `jax.grad` would hoist loop constants
    # out of the loop: several arrays as large as the logits of a chunk.
    return _loop_with_gradients(loss, *arrays)


@_value_and_gradients.defjvp
def _value_and_gradients_jvp(loss, primals, tangents):
    return jax.jvp(functools.partial(_loop_with_gradients, loss), primals, tangents)


def _loop_with_gradients(loss: _Chunked, x: Array, copies: Array, labels: Array, where: Array):
    # With a copy of the table for each group of rows and each part of the length, the loop needs no communication.
    table, (groups, parts, vocab_size, d_model) = copies.astype(x.dtype), copies.shape
    order = _counted_first(loss.num_chunks, copies, where)

    def visit(sums, chunk):
        total, d_copies = sums
        states, labels, where = chunk
        x = _rows(states)
        logits = jnp.einsum("gcnd,gcvd->gcnv", x, table, preferred_element_type=jnp.float32)
        value, d_logits = loss.value_and_gradient(logits, labels, where)
        d_logits = d_logits.astype(x.dtype)
        d_x = jnp.einsum("gcnv,gcvd->gcnd", d_logits, table, preferred_element_type=jnp.float32)
        # [D, V], because transposing a few features is cheaper than transposing many logits.
        d_chunk = jnp.einsum("gcnd,gcnv->gcdv", x, d_logits, preferred_element_type=jnp.float32)
        d_copies = constrain(d_copies + d_chunk, *names)
        return (total + value, d_copies), d_x.astype(x.dtype).reshape(states.shape)

    if order is not None:
        visit = _skipping(visit, lambda chunk: jnp.zeros_like(chunk[0]))
    names = "batch", "length", None, "vocab"
    initial = jnp.float32(0), constrain(jnp.zeros((groups, parts, d_model, vocab_size), jnp.float32), *names)
    chunks = _split(loss.num_chunks, copies, order, x, labels, where)
    (total, d_copies), d_x = jax.lax.scan(visit, *vary_alike((initial, chunks, table))[:2])
    return total, _joined(d_x, x.shape, order), d_copies.mT.astype(copies.dtype)


def _rows(x: Array) -> Array:
    """Returns ``[G, C, n, ..., D]`` as ``[G, C, rows, D]``."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:-1]), x.shape[-1])


def _counted_first(num_chunks: int, copies: Array, where: Array) -> Array | None:
    """Returns the positions ``[B * T]`` with the counted ones first; None if that would not save time.

    With several groups of rows, or several parts of the length, positions would move between devices.
    """
    if num_chunks == 1 or copies.shape[:2] != (1, 1):
        return None
    return jnp.argsort(~where.reshape(-1), stable=True)


def _skipping(
    visit: Callable[..., tuple[SumsT, OutputT]], output: Callable[[tuple[Array, ...]], OutputT]
) -> Callable[..., tuple[SumsT, OutputT]]:
    """Returns a step of a scan that skips the chunks without counted positions; their output is `output`."""

    def step(sums, chunk):
        return jax.lax.cond(chunk[-1].any(), visit, lambda sums, chunk: (sums, output(chunk)), sums, chunk)

    return step


def _split(num_chunks: int, copies: Array, order: Array | None, *arrays: Array) -> tuple[Array, ...]:
    """Splits ``[B, T, ...]`` into ``[chunks, G, C, n, ...]``: n positions of each part of each group of rows.

    The split is along T because a mesh may shard the batch, and within each part because a mesh may shard the parts.
    Zeros pad the last chunk.

    Args:
      order: the order of positions if there is only one group; see `_counted_first`.
    """
    groups, parts = copies.shape[:2]

    def split(x: Array) -> Array:
        if order is not None:
            x = x.reshape(1, order.size, *x.shape[2:])[:, order]
        batch, length, *features = x.shape
        length //= parts
        size = -(-length // num_chunks)
        x = x.reshape(batch, parts, length, *features)
        x = jnp.pad(x, ((0, 0), (0, 0), (0, num_chunks * size - length), *((0, 0),) * len(features)))
        x = x.reshape(groups, batch // groups, parts, num_chunks, size, *features)
        return jnp.moveaxis(x, (3, 0, 2), (0, 1, 2)).reshape(
            num_chunks, groups, parts, batch // groups * size, *features
        )

    return tuple(split(x) for x in arrays)


def _joined(x: Array, shape: tuple[int, ...], order: Array | None) -> Array:
    """Joins ``[chunks, G, C, n, ...]`` into ``[B, T, ...]``."""
    if order is not None:
        features = x.shape[4:]
        return x.reshape(-1, *features)[: order.size][jnp.argsort(order)].reshape(shape)
    (batch, length, *features), (num_chunks, groups, parts, *_) = shape, x.shape
    size = -(-length // parts // num_chunks)
    x = x.reshape(num_chunks, groups, parts, batch // groups, size, *features)
    x = jnp.moveaxis(x, (1, 3, 2, 0), (0, 1, 2, 3)).reshape(batch, parts, num_chunks * size, *features)
    return x[:, :, : length // parts].reshape(shape)
