"""Losses.  They return ``(sum, count)``: means, accumulation and collectives are the caller's."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxformer import axes
from jaxformer.axes import constrain


def cross_entropy(
    logits: Float[Array, "*batch V"],
    labels: Int[Array, "*batch"],
    *,
    where: Bool[Array, "*batch"] | None = None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Cross entropy with label smoothing: the sum over the counted labels, in nats, and their number.

    The target distribution is :math:`(1-\epsilon)\,\delta_y + \epsilon / V` (Szegedy et al. 2016), so with
    :math:`\log Z` the log-sum-exp of the logits :math:`x`,

    .. math:: \log Z - (1-\epsilon)\, x_y - \epsilon\, \overline{x} \; + z \log^2 Z ,

    which needs no array of log-probabilities.  `z_loss` keeps :math:`\log Z` near 0 (Chowdhery et al. 2022).

    Args:
      where: labels to count; the others add nothing, whatever their logits hold.

    Raises:
      ValueError: `smoothing` is not in [0, 1).

    >>> import jax.numpy as jnp
    >>> total, count = cross_entropy(jnp.zeros((3, 4)), jnp.array([0, 1, 2]))
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be in [0, 1), got {smoothing}")
    logits = logits.astype(jnp.float32)
    if where is not None:
        logits = jnp.where(where[..., None], logits, 0.0)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A comparison, not a gather: its gradient is elementwise, where a gather's is a scatter over [.., V].
    chosen = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1) == labels[..., None]
    loss = log_z - (1 - smoothing) * jnp.where(chosen, logits, 0.0).sum(-1)
    if smoothing:
        loss -= smoothing * logits.mean(-1)
    if z_loss:
        loss += z_loss * jnp.square(log_z)
    if where is None:
        return loss.sum(), jnp.asarray(float(labels.size))
    return jnp.where(where, loss, 0.0).sum(), where.sum().astype(jnp.float32)


def linear_cross_entropy(
    x: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    labels: Int[Array, "B T"],
    *,
    where: Bool[Array, "B T"] | None = None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """`cross_entropy` of the logits ``x table^T``, which never exist as a whole.

    Logits are made, used and dropped for some positions at a time; their gradient is taken in the same pass, since
    that of a sum is known up to a factor before the backward pass begins (Hsu et al. 2024, "Liger Kernel").  Memory
    is that of one chunk instead of ``B T V``, and on a CPU, where a chunk stays in the cache, it takes half the time.

    Args:
      table: the output projection, a row for each label; cast to the dtype of `x`, sums are float32.
      where: labels to count; the others add nothing, whatever `x` holds there.
      chunk: positions at a time, over the whole batch; by default as many as fit each device: the cache of a CPU
        (4 M logits), or 1 GB of an accelerator.

    Raises:
      ValueError: `smoothing` is not in [0, 1), or shapes that do not fit.

    >>> import jax.numpy as jnp
    >>> total, count = linear_cross_entropy(jnp.ones((1, 3, 2)), jnp.zeros((4, 2)), jnp.array([[0, 1, 2]]))
    >>> round(float(total / count), 4), int(count)       # log 4
    (1.3863, 3)
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be in [0, 1), got {smoothing}")
    if x.shape[:2] != labels.shape or x.shape[2] != table.shape[1]:
        raise ValueError(
            f"expected x [B, T, D], table [V, D], labels [B, T]; got {list(x.shape)}, {list(table.shape)}, "
            f"{list(labels.shape)}"
        )
    if where is None:
        where = jnp.ones(labels.shape, bool)
    if chunk is None:
        each = 1 << (22 if axes.devices()[0].platform == "cpu" else 28)
        chunk = each * axes.pieces("batch", "length", "vocab") // table.shape[0]
    batch, length = labels.shape
    pieces, groups = -(-length // max(1, chunk // batch)), axes.pieces("batch")
    options = _Options(smoothing, z_loss, pieces, groups if batch % groups == 0 else 1)
    x = jnp.where(where[..., None], x, 0)
    return _linear_cross_entropy(options, x, table, labels, where), where.sum().astype(jnp.float32)


class _Options(NamedTuple):
    smoothing: float
    z_loss: float
    pieces: int
    groups: int  # of rows, as the batch is cut over devices


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _linear_cross_entropy(options: _Options, x: Array, table: Array, labels: Array, where: Array) -> Array:
    narrow = constrain(table.astype(x.dtype), "vocab", None)

    def add(total, piece):
        x, labels, where = piece
        logits = jnp.einsum("btd,vd->btv", x, narrow, preferred_element_type=jnp.float32)
        some, _ = cross_entropy(logits, labels, where=where, smoothing=options.smoothing, z_loss=options.z_loss)
        return total + some, None

    return jax.lax.scan(add, jnp.float32(0), _cut(options.pieces, x, labels, where))[0]


def _linear_cross_entropy_forward(options, x, table, labels, where):
    # Gathered once, before the loop; and the gradient of the table is summed over devices once, after it.
    narrow, (size, width) = constrain(table.astype(x.dtype), "vocab", None), table.shape
    low = options.smoothing / size
    grouped = lambda a: a.reshape(options.groups, -1, a.shape[-1])

    def add(sums, piece):
        total, d_table = sums
        x, labels, where = (a.reshape(-1, *a.shape[2:]) for a in piece)
        logits = jnp.einsum("nd,vd->nv", x, narrow, preferred_element_type=jnp.float32)
        top = logits.max(-1, keepdims=True)
        powers = jnp.exp(logits - top)
        weight = powers.sum(-1, keepdims=True)
        log_z = top + jnp.log(weight)
        chosen = jax.lax.broadcasted_iota(labels.dtype, logits.shape, 1) == labels[:, None]
        loss = log_z[:, 0] - (1 - options.smoothing) * jnp.where(chosen, logits, 0.0).sum(-1)
        loss += options.z_loss * jnp.square(log_z[:, 0]) - options.smoothing * logits.mean(-1)
        scale = (1 + 2 * options.z_loss * log_z) / weight
        d_logits = powers * scale - jnp.where(chosen, 1 - options.smoothing + low, low)
        d_logits = jnp.where(where[:, None], d_logits, 0.0).astype(x.dtype)
        d_x = jnp.einsum("nv,vd->nd", d_logits, narrow, preferred_element_type=jnp.float32)
        # [D, V], for the transpose of a few features is cheaper than that of many logits.
        more = jnp.einsum("gnd,gnv->gdv", grouped(x), grouped(d_logits), preferred_element_type=jnp.float32)
        d_table = constrain(d_table + more, "batch", None, "vocab")
        return (total + jnp.where(where, loss, 0.0).sum(), d_table), d_x.astype(x.dtype).reshape(piece[0].shape)

    zero = (jnp.float32(0), constrain(jnp.zeros((options.groups, width, size), jnp.float32), "batch", None, "vocab"))
    (total, d_table), d_x = jax.lax.scan(add, zero, _cut(options.pieces, x, labels, where))
    batch, length, _ = x.shape
    d_x = jnp.moveaxis(d_x, 0, 1).reshape(batch, -1, width)[:, :length]
    return total, (d_x, d_table.sum(0).T.astype(table.dtype))


def _linear_cross_entropy_backward(options, slopes, upstream):
    del options
    d_x, d_table = ((slope.astype(jnp.float32) * upstream).astype(slope.dtype) for slope in slopes)
    return d_x, d_table, None, None


_linear_cross_entropy.defvjp(_linear_cross_entropy_forward, _linear_cross_entropy_backward)


def _cut(pieces: int, *arrays: Array) -> tuple[Array, ...]:
    """``[B, T, ...]`` to ``[pieces, B, t, ...]``: along T, for a mesh may have the batch; filled up with zeros."""

    def one(x: Array) -> Array:
        size = -(-x.shape[1] // pieces)
        x = jnp.pad(x, ((0, 0), (0, pieces * size - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(x.shape[0], pieces, size, *x.shape[2:]), 1, 0)

    return tuple(one(x) for x in arrays)
