"""Losses. They return ``(sum, count)``; the caller computes means, accumulates, and reduces over devices."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from jaxformer import targets
from jaxformer.axes import constrain, has_known_values, placed, vary_alike

ALIGNED = 16
"""A table's rows are padded to a multiple of this number on accelerators, as their matrix units require.

Otherwise XLA would copy the gradient of the logits, which is much larger, to pad it: GPT-2 has 50,257 rows.
"""


def cross_entropy(
    logits: Float[Array, "*batch V"],
    labels: Integer[Array, "*batch"],
    *,
    where: Bool[Array, "*batch"] | None = None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Returns the cross entropy with label smoothing: the sum over the counted labels, in nats, and their number.

    The target distribution is :math:`(1-\epsilon)\,\delta_y + \epsilon / V` (Szegedy et al. 2016), so with
    :math:`\log Z` the log-sum-exp of the logits :math:`x`,

    .. math:: \log Z - (1-\epsilon)\, x_y - \epsilon\, \overline{x} \; + z \log^2 Z ,

    which needs no array of log-probabilities. `z_loss` keeps :math:`\log Z` near 0 (Chowdhery et al. 2022).

    A counted label outside of [0, V), such as the -100 that other libraries use for "no label", is an error, unless its
    value is unknown: under tracing it is counted, and adds :math:`\log Z` as if its logit were 0. Exclude such labels
    with `where`.

    Args:
      where: True for labels to count; other labels add nothing, and their logits may hold anything.

    Raises:
      ValueError: `smoothing` is not in [0, 1), shapes do not match, `where` is not Boolean, or a label is not in [0, V)
        where it counts.

    >>> import jax.numpy as jnp
    >>> total, count = cross_entropy(jnp.zeros((3, 4)), jnp.array([0, 1, 2]))
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be in [0, 1), got {smoothing}")
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"shapes must be logits [*batch, V], labels [*batch], got {list(logits.shape)}, {list(labels.shape)}"
        )
    check_where(where, labels.shape)
    check_labels(labels, where, logits.shape[-1])
    logits = logits.astype(jnp.float32)
    if where is not None:
        logits = jnp.where(where[..., None], logits, 0.0)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A comparison, because its gradient is elementwise, while the gradient of a gather is a scatter over [.., V].
    chosen = _chosen(labels, logits.shape)
    loss = log_z - (1 - smoothing) * jnp.where(chosen, logits, 0.0).sum(-1)
    if smoothing:
        loss -= smoothing * logits.mean(-1)
    if z_loss:
        loss += z_loss * jnp.square(log_z)
    if where is None:
        return loss.sum(), jnp.float32(labels.size)
    return jnp.where(where, loss, 0.0).sum(), where.astype(jnp.float32).sum()


def check_where(where: Array | None, shape: tuple[int, ...], name: str = "where") -> None:
    """Checks that a choice of what counts covers all of it: broadcast, it would be counted once and added many times.

    Raises:
      ValueError: the shape differs, or the array is not Boolean.
    """
    if where is not None and (where.shape != shape or where.dtype != bool):
        raise ValueError(f"{name} must be Bool {list(shape)}, got {where.dtype} {list(where.shape)}")


def check_labels(labels: Array, where: Array | None, vocab_size: int) -> None:
    """Checks the labels that count, if their values are available: neither traced nor held by other processes."""
    if not has_known_values(labels, where):
        return
    values = np.asarray(labels)
    outside = (values < 0) | (values >= vocab_size)
    if where is not None:
        outside &= np.asarray(where)
    if outside.any():
        raise ValueError(
            f"labels must be in [0, V = {vocab_size}) where they count, got {values[outside][0]}; "
            "exclude labels with where=, as in where=labels >= 0"
        )


def _chosen(labels: Integer[Array, "*batch"], shape: tuple[int, ...]) -> Bool[Array, "*batch V"]:
    """Returns True at the label of each row of logits ``[*batch, V]``."""
    if labels.dtype.itemsize < 4:  # an index below V may not fit, and would wrap onto other labels
        labels = labels.astype(jnp.int32)
    return jax.lax.broadcasted_iota(labels.dtype, shape, len(shape) - 1) == labels[..., None]


def logits_per_chunk() -> int:
    """Returns the number of logits that a device computes at a time: 2**22 for a CPU's cache, else 2**28 (1 GiB)."""
    return 1 << (22 if targets.devices()[0].platform == "cpu" else 28)


class LogitLoss:
    """A loss of logits: a frozen dataclass, so that it is hashable, with a method `value`. It fits any model's head.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Focal(LogitLoss):
    ...     gamma: float = 2.0
    ...     def value(self, logits, labels, where):
    ...         log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
    ...         return -jnp.where(where, (1 - jnp.exp(log_p)) ** self.gamma * log_p, 0.0).sum()
    >>> total, count = linear_loss(jnp.ones((1, 3, 2)), jnp.zeros((4, 2)), jnp.array([[0, 1, 2]]), Focal())
    >>> round(float(total / count), 4)       # (3/4)^2 log 4
    0.7798
    """

    passes: ClassVar[int] = 1
    """The number of passes over each sequence that are compared, in neighboring rows: see `duplicate_rows`."""

    def value(self, logits: Array, labels: Array, where: Array) -> Array:
        """Returns the sum over the labels that count.

        Args:
          logits: float32 ``[*batch, V]``; with several passes, ``[*batch, passes, V]``.
          labels, where: ``[*batch]``; where `where` is False, logits and labels are arbitrary, but finite.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define value")

    def value_and_gradient(self, logits: Array, labels: Array, where: Array, vocab_size: int) -> tuple[Array, Array]:
        """Returns `value` and its gradient with respect to the logits; those from `vocab_size` on do not count."""
        return jax.value_and_grad(lambda x: self.value(x[..., :vocab_size], labels, where))(logits)


@dataclasses.dataclass(frozen=True)
class CrossEntropy(LogitLoss):
    """The `cross_entropy` with label smoothing and z-loss.

    Raises:
      ValueError: `smoothing` is not in [0, 1).

    >>> total, count = linear_loss(jnp.ones((1, 3, 2)), jnp.zeros((4, 2)), jnp.array([[0, 1, 2]]), CrossEntropy(0.1))
    >>> round(float(total / count), 4)       # log 4
    1.3863
    """

    smoothing: float = 0.0
    z_loss: float = 0.0

    def __post_init__(self):
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be in [0, 1), got {self.smoothing}")

    def value(self, logits, labels, where):
        return cross_entropy(logits, labels, where=where, smoothing=self.smoothing, z_loss=self.z_loss)[0]

    def value_and_gradient(self, logits, labels, where, vocab_size):
        low = self.smoothing / vocab_size
        target = jnp.where(_chosen(labels, logits.shape), 1 - self.smoothing + low, low)
        if logits.shape[-1] > vocab_size:
            real = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) < vocab_size
            target, logits = jnp.where(real, target, 0.0), jnp.where(real, logits, jnp.finfo(jnp.float32).min)
        # XLA reads all logits once for each reduction, so there are only three: two sums and the maximum.
        top = jax.lax.stop_gradient(logits.max(-1, keepdims=True))  # no result depends on it
        powers = jnp.exp(logits - top)
        weight = powers.sum(-1, keepdims=True)
        log_z = top + jnp.log(weight)
        hit = target * logits if low else jnp.where(target > 0, logits, 0.0)  # 0 times a logit of -inf is NaN
        loss = log_z[..., 0] - hit.sum(-1)
        if self.z_loss:  # 0 times a square that overflows is NaN
            loss += self.z_loss * jnp.square(log_z[..., 0])
        scale = (1 + 2 * self.z_loss * log_z) / weight
        return jnp.where(where, loss, 0.0).sum(), jnp.where(where[..., None], powers * scale - target, 0.0)


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
    loss = CrossEntropy() if loss is None else loss
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
    where = jnp.ones(labels.shape, bool) if where is None else where
    x = jnp.where(where[..., None], x, 0)
    if passes > 1:  # [B, T, passes, D]: the labels of all passes are the same
        x = x.reshape(batch // passes, passes, length, x.shape[2]).swapaxes(1, 2)
        labels, where = labels[::passes], where[::passes]
    chunk = logits_per_chunk() * groups * parts // vocab_size if chunk is None else chunk
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


def _skipping(visit: Callable[..., Any], output: Callable[..., Any]) -> Callable[..., Any]:
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
