"""Attention to one position at a time, and the objectives of image captioning (Xu et al. 2015)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def pick_position(
    weights: Float[Array, "*batch S"], noise: Float[Array, "*batch S"] | None = None
) -> Int[Array, "*batch"]:
    r"""Picks a position from each row of attention weights: :math:`\arg\max_s (\log a_s + g_s)`.

    With Gumbel noise g it is a draw from the weights (Maddison et al. 2014); without noise it is the most probable
    position. Infinite noise at one position forces that position.

    >>> pick_position(jnp.array([[0.2, 0.5, 0.3]])).tolist()
    [1]
    >>> pick_position(jnp.array([[0.2, 0.5, 0.3]]), jnp.array([[jnp.inf, 0.0, 0.0]])).tolist()
    [0]
    """
    return (weights if noise is None else jnp.log(weights) + noise).argmax(-1)


def reinforce(
    log_probs: Float[Array, "B T"],
    rewards: Float[Array, "B T"],
    *,
    baseline: Float[Array, ""],
    where: Bool[Array, "B T"] | None = None,
) -> Float[Array, ""]:
    r"""Returns a surrogate loss whose gradient estimates the gradient of the negative expected reward (Williams 1992).

    .. math:: -\sum_t \Big[\sum_{u \ge t} (r_u - b)\Big] \log p(s_t)

    Each choice is credited only with rewards from its own step on. Rewards are treated as constants; if they depend on
    parameters, add their gradient elsewhere. Any baseline that does not depend on the choices leaves the expected
    gradient unchanged; a good one lowers the variance.

    Args:
      log_probs: the log-probability of each choice. Where `where` is False it may be anything, but the gradient of
        ``jnp.log(0)`` is not finite: use ``jnp.log(jnp.where(where, probabilities, 1.0))``.
      rewards: the reward of each step, which depends on its choice and on earlier ones.
      where: True where a step is not padding; default: everywhere.

    >>> log_probs, rewards = jnp.log(jnp.array([[0.5, 0.25]])), jnp.array([[1.0, 2.0]])
    >>> jax.grad(lambda x: reinforce(x, rewards, baseline=jnp.float32(0.5)))(log_probs).tolist()
    [[-2.0, -1.5]]
    """
    gained = jax.lax.stop_gradient(rewards - baseline)
    if where is not None:
        gained, log_probs = (jnp.where(where, x, 0.0) for x in (gained, log_probs))
    to_go = jnp.cumsum(gained[:, ::-1], 1)[:, ::-1]
    return -(to_go * log_probs).sum()


def doubly_stochastic_penalty(
    weights: Float[Array, "B T S"], *, where: Bool[Array, "B T"] | None = None
) -> Float[Array, ""]:
    r"""Computes :math:`\sum_s (1 - \sum_t a_{ts})^2`, summed over the batch (Xu et al. 2015, eq. 14).

    The weights of each step sum to 1; the penalty is 0 if the weights of each position over all steps also sum to 1.

    Args:
      where: True where a step is not padding; default: everywhere. A row that is all padding counts as 0.

    >>> doubly_stochastic_penalty(jnp.eye(2)[None]).item()
    0.0
    >>> doubly_stochastic_penalty(jnp.array([[[1.0, 0.0], [1.0, 0.0]]])).item()
    2.0
    """
    if where is None:
        return jnp.square(1 - weights.sum(1)).sum()
    penalties = jnp.square(1 - jnp.where(where[..., None], weights, 0.0).sum(1)).sum(1)
    return jnp.where(where.any(1), penalties, 0.0).sum()


def weights_entropy(weights: Float[Array, "*batch S"]) -> Float[Array, "*batch"]:
    """Computes the entropy of each row of weights in nats, with a finite gradient where a weight is 0.

    >>> print(f"{weights_entropy(jnp.full((1, 4), 0.25))[0]:.4f}")
    1.3863
    """
    safe = jnp.where(weights > 0, weights, 1.0)
    return -(safe * jnp.log(safe)).sum(-1)
