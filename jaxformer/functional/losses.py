"""Losses.  They return ``(sum, count)``: means, accumulation and collectives are the caller's."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxformer import targets
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


def logits_per_chunk() -> int:
    """Returns how many logits `linear_cross_entropy` holds on a device: 4 M for a CPU's cache, 1 GB elsewhere."""
    return 1 << (22 if targets.devices()[0].platform == "cpu" else 28)


def linear_cross_entropy(
    x: Float[Array, "B T D"],
    table: Float[Array, "V D"] | Float[Array, "G C V D"],
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
      table: the output projection, a row for each label; cast to the dtype of `x`, sums are float32.  Where it is used
        elsewhere, too, the `table_copies` that all uses share.
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
    if x.shape[:2] != labels.shape or x.shape[2] != table.shape[-1]:
        raise ValueError(
            f"expected x [B, T, D], table [V, D], labels [B, T]; got {list(x.shape)}, {list(table.shape)}, "
            f"{list(labels.shape)}"
        )
    batch, length = labels.shape
    # Gradients of the table are summed in float32 whatever its dtype.
    copies = table.astype(jnp.float32)[None, None] if table.ndim == 2 else table
    groups, parts, vocab_size, _ = copies.shape
    if where is None:
        where = jnp.ones(labels.shape, bool)
    if chunk is None:
        chunk = logits_per_chunk() * groups * parts // vocab_size
    options = _Options(smoothing, z_loss, -(-length // parts // max(1, chunk // (batch * parts))))
    x = jnp.where(where[..., None], x, 0)
    return _linear_cross_entropy(options, x, copies, labels, where), where.sum().astype(jnp.float32)


class _Options(NamedTuple):
    smoothing: float
    z_loss: float
    pieces: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _linear_cross_entropy(options: _Options, x: Array, copies: Array, labels: Array, where: Array) -> Array:
    narrow = copies.astype(x.dtype)

    def add(total, piece):
        x, labels, where = piece
        logits = jnp.einsum("gcnd,gcvd->gcnv", x, narrow, preferred_element_type=jnp.float32)
        some, _ = cross_entropy(logits, labels, where=where, smoothing=options.smoothing, z_loss=options.z_loss)
        return total + some, None

    return jax.lax.scan(add, jnp.float32(0), _cut(options.pieces, narrow, x, labels, where))[0]


def _linear_cross_entropy_forward(options, x, copies, labels, where):
    # A copy of the table for each group of rows and part of their length: nothing is sent within the loop.
    narrow, (*number, size, width) = copies.astype(x.dtype), copies.shape
    low = options.smoothing / size

    def add(sums, piece):
        total, d_copies = sums
        x, labels, where = piece
        logits = jnp.einsum("gcnd,gcvd->gcnv", x, narrow, preferred_element_type=jnp.float32)
        top = logits.max(-1, keepdims=True)
        powers = jnp.exp(logits - top)
        weight = powers.sum(-1, keepdims=True)
        log_z = top + jnp.log(weight)
        chosen = jax.lax.broadcasted_iota(labels.dtype, logits.shape, 3) == labels[..., None]
        loss = log_z[..., 0] - (1 - options.smoothing) * jnp.where(chosen, logits, 0.0).sum(-1)
        loss += options.z_loss * jnp.square(log_z[..., 0]) - options.smoothing * logits.mean(-1)
        scale = (1 + 2 * options.z_loss * log_z) / weight
        d_logits = powers * scale - jnp.where(chosen, 1 - options.smoothing + low, low)
        d_logits = jnp.where(where[..., None], d_logits, 0.0).astype(x.dtype)
        d_x = jnp.einsum("gcnv,gcvd->gcnd", d_logits, narrow, preferred_element_type=jnp.float32)
        # [D, V], for the transpose of a few features is cheaper than that of many logits.
        more = jnp.einsum("gcnd,gcnv->gcdv", x, d_logits, preferred_element_type=jnp.float32)
        d_copies = constrain(d_copies + more, *names)
        return (total + jnp.where(where, loss, 0.0).sum(), d_copies), d_x.astype(x.dtype)

    names = "batch", "length", None, "vocab"
    zero = jnp.float32(0), constrain(jnp.zeros((*number, width, size), jnp.float32), *names)
    (total, d_copies), d_x = jax.lax.scan(add, zero, _cut(options.pieces, copies, x, labels, where))
    return total, (_joined(d_x, x.shape), d_copies.mT.astype(copies.dtype))


def _linear_cross_entropy_backward(options, slopes, upstream):
    del options
    d_x, d_copies = ((slope.astype(jnp.float32) * upstream).astype(slope.dtype) for slope in slopes)
    return d_x, d_copies, None, None


_linear_cross_entropy.defvjp(_linear_cross_entropy_forward, _linear_cross_entropy_backward)


def _cut(pieces: int, copies: Array, *arrays: Array) -> tuple[Array, ...]:
    """``[B, T, ...]`` to ``[pieces, G, C, n, ...]``: some positions of each part of each group of rows at a time.

    Along T, for a mesh may have the batch; within each part, for a mesh may have the parts; filled up with zeros.
    """
    groups, parts = copies.shape[:2]

    def one(x: Array) -> Array:
        batch, length, *rest = x.shape
        length //= parts
        size = -(-length // pieces)
        x = x.reshape(batch, parts, length, *rest)
        x = jnp.pad(x, ((0, 0), (0, 0), (0, pieces * size - length), *((0, 0),) * len(rest)))
        x = x.reshape(groups, batch // groups, parts, pieces, size, *rest)
        return jnp.moveaxis(x, (3, 0, 2), (0, 1, 2)).reshape(pieces, groups, parts, -1, *rest)

    return tuple(one(x) for x in arrays)


def _joined(x: Array, shape: tuple[int, int, int]) -> Array:
    """``[pieces, G, C, n, D]`` back to ``[B, T, D]``."""
    (batch, length, width), (pieces, groups, parts, *_) = shape, x.shape
    x = x.reshape(pieces, groups, parts, batch // groups, -1, width)
    x = jnp.moveaxis(x, (1, 3, 2, 0), (0, 1, 2, 3)).reshape(batch, parts, -1, width)
    return x[:, :, : length // parts].reshape(shape)
