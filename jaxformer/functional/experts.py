"""Mixtures of experts: each token is sent to a few of many feed-forward networks.

`route` chooses the experts of each token. `mixture_of_experts` computes their outputs, either without a limit
(dropless: tokens are sorted by expert for one grouped matrix product) or with a capacity for each expert (a buffer
``[E, C, D]`` that a mesh may shard over experts).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.functional.feed_forward import Activation, relu
from jaxformer.functional.losses import check_where
from jaxformer.functional.tokens import clear_padding, everywhere
from jaxformer.reprs import brief


class Routing(NamedTuple):
    """The experts of each token, and their weights.

    >>> route(jnp.zeros((5, 8)), 2).weights.shape
    (5, 2)
    """

    probabilities: jax.Array  # float32 [*tokens, E]: the probability of every expert
    weights: jax.Array  # float32 [*tokens, k]: the factors of the outputs of the chosen experts
    experts: jax.Array  # int32 [*tokens, k]: the chosen experts, most probable first; E (no expert) for padding

    __repr__ = brief


class Experts(NamedTuple):
    """The kernels of E feed-forward networks without biases; with `w_gate` the networks are gated (GLU, SwiGLU).

    >>> Experts(jnp.zeros((8, 4, 16)), jnp.zeros((8, 16, 4))).w_gate is None
    True
    """

    w_in: jax.Array  # [E, D, F]
    w_out: jax.Array  # [E, F, D]
    w_gate: jax.Array | None = None  # [E, D, F]

    __repr__ = brief


def route(
    logits: Float[Array, "*tokens E"],
    num_experts_per_token: int,
    *,
    normalize: bool = True,
    valid: Bool[Array, "*tokens"] | None = None,
) -> Routing:
    """Chooses the most probable experts of each token by a softmax over all of them (top-k routing).

    Args:
      normalize: True for weights that sum to 1 (Shazeer et al. 2017; Mixtral). Otherwise each weight is the expert's
        probability, which lets a router that chooses one expert learn (Fedus et al. 2021, "Switch").
      valid: False for padding, which goes to no expert: it takes no capacity, its output is 0, and its contents are
        inert.

    Raises:
      ValueError: `num_experts_per_token` is not between 1 and the number of experts.

    >>> routing = route(jnp.log(jnp.array([[0.1, 0.6, 0.3]])), 2)
    >>> routing.experts.tolist(), [round(w, 3) for w in routing.weights[0].tolist()]
    ([[1, 2]], [0.667, 0.333])
    """
    if not 1 <= num_experts_per_token <= logits.shape[-1]:
        raise ValueError(
            f"num_experts_per_token must be between 1 and {logits.shape[-1]} experts, got {num_experts_per_token}"
        )
    logits = clear_padding(logits, valid)  # before the softmax, because its gradient at NaN is NaN
    probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    weights, experts = jax.lax.top_k(probabilities, num_experts_per_token)
    if normalize:
        weights = weights / weights.sum(-1, keepdims=True)
    if valid is not None:
        weights = jnp.where(valid[..., None], weights, 0)
        experts = jnp.where(valid[..., None], experts, logits.shape[-1])
    return Routing(probabilities, weights, experts.astype(jnp.int32))


def load_balancing_loss(routing: Routing, valid: Bool[Array, "*tokens"] | None = None) -> Float[Array, ""]:
    """Returns ``E sum_e f_e P_e``: 1 if tokens spread evenly, E if all go to one expert (Fedus et al. 2021, eq. 4).

    ``f_e`` is the fraction of choices of expert e, and ``P_e`` is its mean probability, through which the gradient
    flows. Add it to the loss with a small factor, such as 0.01.

    Args:
      valid: True for the tokens to count; by default those with an expert, which padding does not have if `route` knows
        it. If padding may hold NaN, pass `valid` to `route`, because the gradient goes through its softmax.

    Raises:
      ValueError: `valid` is not Boolean, or has another shape than the tokens.

    >>> even = route(jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9]])), 1)
    >>> one = route(jnp.log(jnp.array([[1.0, 1e-9], [1.0, 1e-9]])), 1)
    >>> [round(load_balancing_loss(routing).item(), 3) for routing in (even, one)]
    [1.0, 2.0]
    """
    check_where(valid, routing.probabilities.shape[:-1], "valid")
    num_experts = routing.probabilities.shape[-1]
    chosen = jax.nn.one_hot(routing.experts, num_experts).mean(-2).reshape(-1, num_experts)
    probabilities = routing.probabilities.reshape(-1, num_experts)
    counted = (routing.experts[..., 0] < num_experts if valid is None else valid).reshape(-1)
    total = jnp.maximum(counted.sum(dtype=jnp.float32), 1.0)
    # Padding may hold NaN, and 0 times NaN is NaN.
    fraction, mean = (jnp.where(counted[:, None], x, 0).sum(0) / total for x in (chosen, probabilities))
    return num_experts * (fraction * mean).sum()


def router_z_loss(logits: Float[Array, "*tokens E"], valid: Bool[Array, "*tokens"] | None = None) -> Float[Array, ""]:
    """Returns the mean of ``logsumexp(logits) ** 2``, which keeps a router's logits small (Zoph et al. 2022, eq. 5).

    Raises:
      ValueError: `valid` is not Boolean, or has another shape than the tokens.

    >>> round(router_z_loss(jnp.log(jnp.array([[0.5, 0.5], [1.0, 3.0]]))).item(), 3)
    0.961
    """
    check_where(valid, logits.shape[:-1], "valid")
    counted = everywhere(valid, logits.shape[:-1])
    # Padding may hold NaN, and the gradient of logsumexp at NaN is NaN, so it is replaced before and after.
    logits = jnp.where(counted[..., None], logits.astype(jnp.float32), 0)
    square = jnp.where(counted, jax.nn.logsumexp(logits, axis=-1) ** 2, 0)
    return square.sum() / jnp.maximum(counted.sum(dtype=jnp.float32), 1.0)


def mixture_of_experts(
    x: Float[Array, "T D"],
    routing: Routing,
    experts: Experts,
    *,
    activation: Activation = relu,
    capacity: int | None = None,
    place: Callable[[Array], Array] = lambda buffer: buffer,
) -> Float[Array, "T D"]:
    """Returns ``sum_i weight_i expert_i(x)`` over the experts of each token.

    With a capacity, use ``jax.vmap`` over groups of tokens, such as the rows of a batch. Without one, tokens do not
    depend on each other; pass all of them as one group, because ``jax.vmap`` does not support the grouped product, or
    use ``jax.lax.map``.

    Args:
      routing: the routing of these tokens.
      capacity: the maximum number of tokens per expert; first choices come before second ones, early tokens before late
        ones. A token gets 0 from an expert that is full, so that only its residual path remains. None for no limit: no
        token is dropped (Gale et al. 2022, "MegaBlocks"). See `expert_capacity`.
      place: a function applied to the buffer ``[E, C, D]``, which groups tokens by expert, before and after the
        experts; it can shard the buffer over experts (Lepikhin et al. 2020, "GShard").

    >>> x, halves = jnp.ones((3, 2)), jnp.full((4, 2, 2), 0.5)
    >>> routing = route(jnp.zeros((3, 4)), 2)
    >>> mixture_of_experts(x, routing, Experts(halves, halves)).tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    >>> mixture_of_experts(x, routing, Experts(halves, halves), capacity=2).tolist()
    [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    """
    x = jnp.where((routing.experts < experts.w_in.shape[0]).any(-1, keepdims=True), x, 0)  # padding may be NaN
    if capacity is None:
        return _dropless(x, routing, experts, activation)
    return _limited(x, routing, experts, activation, capacity, place)


def expert_capacity(num_tokens: int, num_experts: int, num_experts_per_token: int, capacity_factor: float) -> int:
    """Returns `capacity_factor` times the number of tokens per expert if they were spread evenly, at least 1.

    >>> expert_capacity(64, 8, 2, 1.25)
    20
    """
    factor = Fraction(str(capacity_factor))  # as written: the float 1.1 is above 11/10, so 11 would become 12
    return max(1, math.ceil(factor * num_tokens * num_experts_per_token / num_experts))


def _dropless(x, routing, experts, activation):
    count = routing.experts.shape[-1]
    # Padding, which is 0 and has weight 0, joins the last expert, so that the groups of the product cover all rows.
    chosen = jnp.minimum(routing.experts.reshape(-1), experts.w_in.shape[0] - 1)
    order = jnp.argsort(chosen)  # stable: the tokens of an expert stay in order
    sizes = jnp.bincount(chosen, length=experts.w_in.shape[0]).astype(jnp.int32)
    token = order // count

    def product(y: Array, kernels: Array) -> Array:
        return jax.lax.ragged_dot(y, kernels.astype(y.dtype), sizes, preferred_element_type=jnp.float32).astype(y.dtype)

    outputs = _apply(x[token], experts, activation, product)
    weights = routing.weights.reshape(-1)[order]
    weighted = outputs.astype(jnp.float32) * weights[:, None]
    return jnp.zeros(x.shape, jnp.float32).at[token].add(weighted).astype(x.dtype)


def _limited(x, routing, experts, activation, capacity, place):
    num_tokens, count = routing.experts.shape
    num_experts = experts.w_in.shape[0]
    # The first choices of all tokens come before any second choice.
    chosen = routing.experts.T.reshape(-1)
    taken = jax.nn.one_hot(chosen, num_experts, dtype=jnp.int32)
    row = (jnp.cumsum(taken, axis=0) * taken).sum(-1) - 1
    token = jnp.tile(jnp.arange(num_tokens), count)
    # Tokens beyond the capacity or without an expert have indices outside of the buffer: writes are dropped, reads give
    # 0.
    buffer = jnp.zeros((num_experts, capacity, x.shape[1]), x.dtype).at[chosen, row].set(x[token], mode="drop")

    def product(y: Array, kernels: Array) -> Array:
        flat = jnp.einsum("ecd,edf->ecf", y, kernels.astype(y.dtype), preferred_element_type=jnp.float32)
        return flat.astype(y.dtype)

    buffer = place(_apply(place(buffer), experts, activation, product))
    outputs = buffer.at[chosen, row].get(mode="fill", fill_value=0).astype(jnp.float32)
    weighted = outputs * routing.weights.T.reshape(-1)[:, None]
    return weighted.reshape(count, num_tokens, x.shape[1]).sum(0).astype(x.dtype)


def _apply(y: Array, experts: Experts, activation: Activation, product: Callable[[Array, Array], Array]) -> Array:
    hidden = product(y, experts.w_in)
    hidden = activation(hidden) if experts.w_gate is None else activation(product(y, experts.w_gate)) * hidden
    return product(hidden, experts.w_out)
