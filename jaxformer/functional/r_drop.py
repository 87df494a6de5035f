"""R-Drop: two passes with different dropout should agree in their predictions (Liang et al. 2021)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from jaxformer.functional.losses import (
    check_labels,
    check_where,
    chunks_of,
    cross_entropy,
    linear_loss,
    logits_per_chunk,
)


def duplicate_rows(x: Array) -> Array:
    """Repeats each row of ``[B, ...]`` next to itself, so that devices that shard the rows need not communicate.

    >>> duplicate_rows(jnp.array([3, 5])).tolist()
    [3, 3, 5, 5]
    """
    return jnp.broadcast_to(x[:, None], (x.shape[0], 2, *x.shape[1:])).reshape(2 * x.shape[0], *x.shape[1:])


def symmetric_divergence(
    first: Float[Array, "*batch V"], second: Float[Array, "*batch V"], *, where: Bool[Array, "*batch"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Returns the symmetric Kullback-Leibler divergence of two arrays of logits: the sum over rows, and their number.

    .. math:: \tfrac12 D(p \| q) + \tfrac12 D(q \| p) = \tfrac12 \sum_v (p_v - q_v)(\log p_v - \log q_v)

    Args:
      where: True for rows to count; other rows add nothing, and may hold anything.

    Raises:
      ValueError: shapes do not match, or `where` is not Boolean.

    >>> total, count = symmetric_divergence(jnp.log(jnp.array([[0.5, 0.5]])), jnp.log(jnp.array([[0.25, 0.75]])))
    >>> round(float(total), 4), int(count)       # 1/8 log 3
    (0.1373, 1)
    """
    if first.shape != second.shape:
        raise ValueError(f"both logits must have one shape, got {list(first.shape)} and {list(second.shape)}")
    check_where(where, first.shape[:-1])
    first, second = first.astype(jnp.float32), second.astype(jnp.float32)
    if where is not None:
        first, second = (jnp.where(where[..., None], x, 0.0) for x in (first, second))
    p, q = jax.nn.log_softmax(first), jax.nn.log_softmax(second)
    both = (p > -jnp.inf) | (q > -jnp.inf)  # a class that is impossible under both adds nothing
    p, q = (jnp.where(both, x, 0.0) for x in (p, q))
    rows = 0.5 * ((jnp.exp(p) - jnp.exp(q)) * (p - q)).sum(-1)
    if where is None:
        return rows.sum(), jnp.float32(rows.size)
    return rows.sum(), where.astype(jnp.float32).sum()


def r_drop(
    first: Float[Array, "*batch V"],
    second: Float[Array, "*batch V"],
    labels: Integer[Array, "*batch"],
    *,
    weight: float,
    where: Bool[Array, "*batch"] | None = None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Returns the loss of two passes with different dropout: the sum over the counted labels, and their number.

    It is the mean of both cross entropies plus :math:`\alpha / 2` times the `symmetric_divergence`: half of the paper's
    sum, so that it has the scale of a cross entropy, with the paper's weight :math:`\alpha`.

    Args:
      weight: :math:`\alpha`.
      where, smoothing, z_loss: see `cross_entropy`.

    Raises:
      ValueError: `smoothing` is not in [0, 1), shapes do not match, `where` is not Boolean, or a label is not in [0, V)
        where it counts.

    >>> logits, labels = jnp.log(jnp.array([[0.25, 0.75]])), jnp.array([1])
    >>> total, count = r_drop(logits, logits, labels, weight=5.0)
    >>> round(float(total), 4) == round(float(cross_entropy(logits, labels)[0]), 4), int(count)
    (True, 1)
    """
    options = {"where": where, "smoothing": smoothing, "z_loss": z_loss}
    (one, count), (other, _) = (cross_entropy(logits, labels, **options) for logits in (first, second))
    divergence, _ = symmetric_divergence(first, second, where=where)
    return 0.5 * (one + other + weight * divergence), count


def linear_r_drop(
    x: Float[Array, "B2 T D"],
    table: Float[Array, "V D"] | Float[Array, "G C V D"],
    labels: Integer[Array, "B2 T"],
    *,
    weight: float,
    where: Bool[Array, "B2 T"] | None = None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the `r_drop` of the logits ``x table^T`` without holding all of them, as `linear_cross_entropy` does.

    Args:
      x: the states of two passes over each sequence, in neighboring rows, as a model computes them from
        `duplicate_rows` of a batch; `labels` and `where` are the same for both.
      table: see `linear_cross_entropy`.
      weight, where, smoothing, z_loss: see `r_drop`.
      chunk: the number of positions to compute at a time, over the full batch.

    Raises:
      ValueError: `smoothing` is not in [0, 1), shapes do not match, `where` is not Boolean, or a label is not in [0, V)
        where it counts.

    >>> labels = duplicate_rows(jnp.array([[0, 1, 2]]))
    >>> total, count = linear_r_drop(jnp.ones((2, 3, 2)), jnp.zeros((4, 2)), labels, weight=5.0)
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """
    if x.shape[0] % 2 or x.shape[:2] != labels.shape or x.shape[2] != table.shape[-1]:
        raise ValueError(
            f"shapes must be x [2 B, T, D], table [V, D], labels [2 B, T], got {list(x.shape)}, {list(table.shape)}, "
            f"{list(labels.shape)}"
        )
    check_where(where, labels.shape)
    check_labels(labels, where, table.shape[-2])
    copies = table.astype(jnp.float32)[None, None] if table.ndim == 2 else table
    groups, parts, vocab_size, _ = copies.shape
    where = jnp.ones(labels.shape, bool) if where is None else where
    x, labels, where = (
        a.reshape(len(a) // 2, 2, *a.shape[1:]) for a in (jnp.where(where[..., None], x, 0), labels, where)
    )
    labels, where = labels[:, 0], where[:, 0]
    if chunk is None:
        chunk = logits_per_chunk() * groups * parts // vocab_size
    num_chunks = chunks_of(labels.shape[1], 2 * labels.shape[0], parts, chunk)
    total = linear_loss(_RDrop(weight, smoothing, z_loss, num_chunks), x.swapaxes(1, 2), copies, labels, where)
    return total, where.astype(jnp.float32).sum()


class _RDrop(NamedTuple):
    weight: float
    smoothing: float
    z_loss: float
    num_chunks: int

    def value(self, logits: Array, labels: Array, where: Array) -> Array:
        pairs = logits.reshape(*labels.shape, 2, logits.shape[-1])
        options = {"weight": self.weight, "where": where, "smoothing": self.smoothing, "z_loss": self.z_loss}
        return r_drop(pairs[..., 0, :], pairs[..., 1, :], labels, **options)[0]

    def value_and_gradient(self, logits: Array, labels: Array, where: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(self.value)(logits, labels, where)
