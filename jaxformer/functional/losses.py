"""Losses.  They return ``(sum, count)``: means, accumulation and collectives are the caller's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


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
