"""Losses of logits, also of two passes that should agree (R-Drop, Liang et al. 2021; SimCut, Gao et al. 2022).

They return ``(sum, count)``; the caller computes means, accumulates, and reduces over devices.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from jaxformer.axes import has_known_values
from jaxformer.functional.tokens import Tokens, clear_padding, token_cutoff


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
    logits = clear_padding(logits, where)
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
    """Checks that a choice of what counts covers all of it: broadcast, it would count once and be added many times."""
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


class LogitLoss:
    """A loss of logits: a frozen dataclass, so that it is hashable, with a method `value`. It fits any model's head.

    >>> from jaxformer.functional import linear_loss
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

    >>> from jaxformer.functional import linear_loss
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
    p, q = _log_probabilities(first, second, where)
    both = (p > -jnp.inf) | (q > -jnp.inf)  # a class that is impossible under both adds nothing
    p, q = (jnp.where(both, x, 0.0) for x in (p, q))
    rows = 0.5 * ((jnp.exp(p) - jnp.exp(q)) * (p - q)).sum(-1)
    return rows.sum(), _num_counted(where, rows.shape)


def divergence(
    first: Float[Array, "*batch V"], second: Float[Array, "*batch V"], *, where: Bool[Array, "*batch"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Returns the Kullback-Leibler divergence of two arrays of logits: the sum over rows, and their number.

    .. math:: D(p \| q) = \sum_v p_v (\log p_v - \log q_v) - p_v + q_v

    The last two terms add up to 0 over the classes. With them, no class adds less than 0, and where both distributions
    are equal, both gradients are 0, not only nearly so.

    Args:
      where: True for rows to count; other rows add nothing, and may hold anything.

    Raises:
      ValueError: shapes do not match, or `where` is not Boolean.

    >>> total, count = divergence(jnp.log(jnp.array([[0.5, 0.5]])), jnp.log(jnp.array([[0.25, 0.75]])))
    >>> round(float(total), 4), int(count)       # 1/2 log 4/3
    (0.1438, 1)
    """
    p, q = _log_probabilities(first, second, where)
    possible = p > -jnp.inf
    terms = jnp.exp(p) * (jnp.where(possible, p, 0.0) - jnp.where(possible, q, 0.0)) - jnp.exp(p) + jnp.exp(q)
    return terms.sum(), _num_counted(where, p.shape[:-1])


def _log_probabilities(first: Array, second: Array, where: Array | None) -> tuple[Array, Array]:
    """Returns the log-probabilities of two arrays of logits, in float32, alike where rows do not count."""
    if first.shape != second.shape:
        raise ValueError(f"both logits must have one shape, got {list(first.shape)} and {list(second.shape)}")
    check_where(where, first.shape[:-1])
    p, q = (jax.nn.log_softmax(clear_padding(x.astype(jnp.float32), where)) for x in (first, second))
    return p, q


def _num_counted(where: Array | None, shape: tuple[int, ...]) -> Array:
    return jnp.float32(math.prod(shape)) if where is None else where.astype(jnp.float32).sum()


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


def simcut(
    clean: Float[Array, "*batch V"],
    cut: Float[Array, "*batch V"],
    labels: Integer[Array, "*batch"],
    *,
    weight: float = 3.0,
    where: Bool[Array, "*batch"] | None = None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Returns the loss of SimCut (Gao et al. 2022): the sum over the counted labels, and their number.

    It is the cross entropy of a pass over the clean input plus :math:`\alpha` times its `divergence` from a pass over
    the same input with some tokens cut off (`token_cutoff`). As in the paper, gradients flow into both passes of the
    divergence, which its authors find essential; in virtual adversarial training, they flow into the second only.

    Args:
      weight: :math:`\alpha`.
      where, smoothing, z_loss: see `cross_entropy`.

    Raises:
      ValueError: `smoothing` is not in [0, 1), shapes do not match, `where` is not Boolean, or a label is not in [0, V)
        where it counts.

    >>> logits, labels = jnp.log(jnp.array([[0.5, 0.5]])), jnp.array([1])
    >>> total, count = simcut(logits, jnp.log(jnp.array([[0.25, 0.75]])), labels)
    >>> round(float(total), 4), int(count)       # log 2 + 3/2 log 4/3
    (1.1247, 1)
    """
    loss, count = cross_entropy(clean, labels, where=where, smoothing=smoothing, z_loss=z_loss)
    return loss + weight * divergence(clean, cut, where=where)[0], count


@dataclasses.dataclass(frozen=True)
class _TwoPasses(LogitLoss):
    """A loss of two passes over each sequence, which should agree; a subclass names its function."""

    weight: float
    smoothing: float = 0.0
    z_loss: float = 0.0
    passes: ClassVar[int] = 2
    function: ClassVar[Callable[..., tuple[Array, Array]]]

    def __post_init__(self):
        CrossEntropy(self.smoothing, self.z_loss)  # checks them

    def value(self, logits, labels, where):
        options = {"weight": self.weight, "smoothing": self.smoothing, "z_loss": self.z_loss}
        return self.function(logits[..., 0, :], logits[..., 1, :], labels, where=where, **options)[0]


@dataclasses.dataclass(frozen=True)
class RDrop(_TwoPasses):
    """The `r_drop` of two passes over each sequence, from `duplicate_rows` of a batch.

    Raises:
      ValueError: `smoothing` is not in [0, 1).

    >>> from jaxformer.functional import linear_loss
    >>> labels = duplicate_rows(jnp.array([[0, 1, 2]]))
    >>> total, count = linear_loss(jnp.ones((2, 3, 2)), jnp.zeros((4, 2)), labels, RDrop(5.0))
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """

    function = staticmethod(r_drop)


@dataclasses.dataclass(frozen=True)
class SimCut(_TwoPasses):
    """The `simcut` of two passes over each sequence, from `duplicate_rows` of a batch whose tokens `inputs` has cut.

    Raises:
      ValueError: `smoothing` or `cut` is not in [0, 1).

    >>> from jaxformer.functional import linear_loss
    >>> labels = duplicate_rows(jnp.array([[0, 1, 2]]))
    >>> total, count = linear_loss(jnp.ones((2, 3, 2)), jnp.zeros((4, 2)), labels, SimCut())
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """

    weight: float = 3.0
    cut: float = 0.05
    function = staticmethod(simcut)

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.cut < 1:
            raise ValueError(f"cut must be in [0, 1), got {self.cut}")

    def inputs(self, tokens: Tokens[Array], key: jax.Array | None) -> Tokens[Array]:
        """Returns the tokens of both passes, in `duplicate_rows`, with those of each second row cut off at random."""
        second = jnp.arange(tokens.shape[0])[:, None] % 2 == 1
        return token_cutoff(tokens, rate=self.cut, key=key, where=second)

    def value_and_gradient(self, logits, labels, where, vocab_size):
        clean, cut = logits[..., 0, :], logits[..., 1, :]
        loss, slope = CrossEntropy(self.smoothing, self.z_loss).value_and_gradient(clean, labels, where, vocab_size)
        apart = lambda x, y: self.weight * divergence(x[..., :vocab_size], y[..., :vocab_size], where=where)[0]
        extra, slopes = jax.value_and_grad(apart, (0, 1))(clean, cut)
        return loss + extra, jnp.stack([slopes[0] + slope, slopes[1]], -2)
