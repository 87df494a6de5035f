"""Attention sinks: a learned logit of each head, an extra term in the denominator of its softmax.

A head with nothing to attend to gives its weight to the sink, so that its weights over the keys sum to less than 1. A
sink needs no key: its term is added to the log-sum-exp of each row, so restricted attention visits no additional block.

Xiao et al. 2023 explain why sinks are needed; OpenAI 2025 (gpt-oss) learn one logit for each head.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.functional.attention.base import is_nonempty


def add_sinks(
    output: Float[Array, "B T N J"], logsumexp: Float[Array, "B T N 2"], sinks: Float[Array, " N"] | None
) -> tuple[Float[Array, "B T N J"], Float[Array, "B T N 2"]]:
    """Returns the output and the log-sum-exp of `blockwise.forward` with sinks; empty rows are unchanged."""
    if sinks is None:
        return output, logsumexp
    m, log_l = logsumexp[..., 0], logsumexp[..., 1]
    more = jnp.where(is_nonempty(log_l), jax.nn.softplus(sinks.astype(jnp.float32)[None, None] - m - log_l), 0.0)
    return output * jnp.exp(-more)[..., None], jnp.stack([m, log_l + more], -1)


def sink_gradients(
    sinks: Float[Array, " N"] | None,
    output: Float[Array, "B T N J"],
    logsumexp: Float[Array, "B T N 2"],
    upstream: Float[Array, "B T N J"],
) -> Float[Array, " N"] | None:
    """Returns the gradients of sinks, given the results of `add_sinks` and the gradient of the output."""
    if sinks is None:
        return None
    m, log_l = logsumexp[..., 0], logsumexp[..., 1]
    weight = jnp.exp(sinks.astype(jnp.float32)[None, None] - m - log_l)
    delta = (upstream.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1)
    # An empty row, and the gradient of its output, may hold NaN.
    return -jnp.where(is_nonempty(log_l), weight * delta, 0.0).sum((0, 1)).astype(sinks.dtype)
