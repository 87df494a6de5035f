"""R-Drop: two passes with different dropout should agree in their predictions (Liang et al. 2021)."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from jaxformer.functional.losses import CrossEntropy, LogitLoss, check_where, cross_entropy
from jaxformer.functional.padding import clear_padding


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
    p, q = (jax.nn.log_softmax(clear_padding(x, where)) for x in (first, second))
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
    each = functools.partial(cross_entropy, labels=labels, where=where, smoothing=smoothing, z_loss=z_loss)
    (one, count), (other, _) = each(first), each(second)
    divergence, _ = symmetric_divergence(first, second, where=where)
    return 0.5 * (one + other + weight * divergence), count


@dataclasses.dataclass(frozen=True)
class RDrop(LogitLoss):
    """The `r_drop` of two passes over each sequence, from `duplicate_rows` of a batch.

    Raises:
      ValueError: `smoothing` is not in [0, 1).

    >>> from jaxformer.functional import linear_loss
    >>> labels = duplicate_rows(jnp.array([[0, 1, 2]]))
    >>> total, count = linear_loss(jnp.ones((2, 3, 2)), jnp.zeros((4, 2)), labels, RDrop(5.0))
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """

    weight: float
    smoothing: float = 0.0
    z_loss: float = 0.0
    passes: ClassVar[int] = 2

    def __post_init__(self):
        CrossEntropy(self.smoothing, self.z_loss)  # checks them

    def value(self, logits, labels, where):
        first, second = logits[..., 0, :], logits[..., 1, :]
        loss = functools.partial(r_drop, weight=self.weight, smoothing=self.smoothing, z_loss=self.z_loss)
        return loss(first, second, labels, where=where)[0]
