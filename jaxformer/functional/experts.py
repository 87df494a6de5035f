"""Mixtures of experts: each token is sent to a few of many feed-forward networks.

`route` chooses; `mixture_of_experts` computes, either without a limit (dropless: tokens sorted by expert, one grouped
matrix product) or with room for so many tokens an expert (a buffer ``[E, C, D]`` that a mesh may cut over experts).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.functional.feed_forward import Activation, relu


class Routing(NamedTuple):
    """Where tokens go.

    >>> route(jnp.zeros((5, 8)), 2).weights.shape
    (5, 2)
    """

    probabilities: jax.Array  # float32 [*tokens, E]: of every expert
    weights: jax.Array  # float32 [*tokens, k]: what the outputs of the chosen ones are multiplied by
    experts: jax.Array  # int32 [*tokens, k]: the chosen ones, most probable first; E, which is none, for padding


class Experts(NamedTuple):
    """The kernels of E feed-forward networks, without biases; with a gate they are gated (GLU, SwiGLU).

    >>> Experts(jnp.zeros((8, 4, 16)), jnp.zeros((8, 16, 4))).w_gate is None
    True
    """

    w_in: jax.Array  # [E, D, F]
    w_out: jax.Array  # [E, F, D]
    w_gate: jax.Array | None = None  # [E, D, F]


def route(
    logits: Float[Array, "*tokens E"],
    count: int,
    *,
    normalize: bool = True,
    valid: Bool[Array, "*tokens"] | None = None,
) -> Routing:
    """The `count` most probable experts of each token, by a softmax over all of them.

    Args:
      normalize: the chosen weights sum to 1 (Shazeer et al. 2017; Mixtral).  Otherwise each is its probability, by
        which a router that chooses one expert learns (Fedus et al. 2021, "Switch").
      valid: False for padding, which goes to no expert: it takes nobody's room, its output is 0, and what it holds is
        inert.

    Raises:
      ValueError: `count` is not between 1 and the number of experts.

    >>> found = route(jnp.log(jnp.array([[0.1, 0.6, 0.3]])), 2)
    >>> found.experts.tolist(), [round(w, 3) for w in found.weights[0].tolist()]
    ([[1, 2]], [0.667, 0.333])
    """
    if not 1 <= count <= logits.shape[-1]:
        raise ValueError(f"count must be between 1 and {logits.shape[-1]} experts, got {count}")
    if valid is not None:  # before the softmax, whose slope at a NaN is one
        logits = jnp.where(valid[..., None], logits, 0)
    probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    weights, experts = jax.lax.top_k(probabilities, count)
    if normalize:
        weights = weights / weights.sum(-1, keepdims=True)
    if valid is not None:
        weights = jnp.where(valid[..., None], weights, 0)
        experts = jnp.where(valid[..., None], experts, logits.shape[-1])
    return Routing(probabilities, weights, experts.astype(jnp.int32))


def load_balancing_loss(routing: Routing, valid: Bool[Array, "*tokens"] | None = None) -> Float[Array, ""]:
    """``E sum_e f_e P_e``: 1 where tokens spread evenly, E where all go to one expert (Fedus et al. 2021, eq. 4).

    ``f_e`` is the share of choices that fell on expert e, ``P_e`` its mean probability; the gradient flows through
    the latter.  Add it to the loss with a small factor, such as 0.01.  Where padding may hold a NaN, give `valid` to
    `route` too: the gradient goes through its softmax.

    >>> even = route(jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9]])), 1)
    >>> one = route(jnp.log(jnp.array([[1.0, 1e-9], [1.0, 1e-9]])), 1)
    >>> [round(load_balancing_loss(routing).item(), 3) for routing in (even, one)]
    [1.0, 2.0]
    """
    num_experts = routing.probabilities.shape[-1]
    chosen = jax.nn.one_hot(routing.experts, num_experts).mean(-2).reshape(-1, num_experts)
    probabilities = routing.probabilities.reshape(-1, num_experts)
    counted = jnp.ones(probabilities.shape[0], bool) if valid is None else valid.reshape(-1)
    total = jnp.maximum(counted.sum(dtype=jnp.float32), 1.0)
    # where, not a product: 0 times the NaN that padding may hold is one.
    share, mean = (jnp.where(counted[:, None], x, 0).sum(0) / total for x in (chosen, probabilities))
    return num_experts * (share * mean).sum()


def router_z_loss(logits: Float[Array, "*tokens E"], valid: Bool[Array, "*tokens"] | None = None) -> Float[Array, ""]:
    """The mean of ``logsumexp(logits) ** 2``, which keeps a router's logits small (Zoph et al. 2022, eq. 5).

    >>> round(router_z_loss(jnp.log(jnp.array([[0.5, 0.5], [1.0, 3.0]]))).item(), 3)
    0.961
    """
    counted = jnp.ones(logits.shape[:-1], bool) if valid is None else valid
    # Both where, and the first before the logsumexp, whose slope at the NaN that padding may hold is one.
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
    """``sum_i weight_i expert_i(x)`` over the experts that each token was sent to.

    With a capacity, lift it over groups of tokens, such as the sentences of a batch, with ``jax.vmap``.  Without one
    tokens do not depend on each other: make one group of all, for JAX cannot map the grouped product.

    Args:
      routing: of these tokens.
      capacity: how many tokens an expert takes; first choices come before second ones, early tokens before late.  A
        token gets nothing from an expert that is full, and its residual path goes on without it.  None for no limit:
        nothing is dropped (Gale et al. 2022, "MegaBlocks").  See `expert_capacity`.
      place: applied to the buffer ``[E, C, D]``, in which each expert's tokens lie together, before and after the
        experts: where a constraint of placement over experts belongs (Lepikhin et al. 2020, "GShard").

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


def expert_capacity(num_tokens: int, num_experts: int, count: int, factor: float) -> int:
    """Room for `factor` times the even share of tokens, at least 1.

    >>> expert_capacity(64, 8, 2, 1.25)
    20
    """
    return max(1, math.ceil(factor * num_tokens * count / num_experts))


def _dropless(x, routing, experts, activation):
    count = routing.experts.shape[-1]
    # Padding, which is 0 and has weight 0, goes last: a product whose groups cover all rows leaves none undefined.
    chosen = jnp.minimum(routing.experts.reshape(-1), experts.w_in.shape[0] - 1)
    order = jnp.argsort(chosen)  # stable: an expert's tokens stay in their order
    sizes = jnp.bincount(chosen, length=experts.w_in.shape[0]).astype(jnp.int32)
    token = order // count

    def product(y: Array, kernels: Array) -> Array:
        return jax.lax.ragged_dot(y, kernels.astype(y.dtype), sizes, preferred_element_type=jnp.float32).astype(y.dtype)

    found = _apply(x[token], experts, activation, product)
    weights = routing.weights.reshape(-1)[order]
    weighted = found.astype(jnp.float32) * weights[:, None]
    return jnp.zeros(x.shape, jnp.float32).at[token].add(weighted).astype(x.dtype)


def _limited(x, routing, experts, activation, capacity, place):
    num_tokens, count = routing.experts.shape
    num_experts = experts.w_in.shape[0]
    # Choice by choice: every token's first before any token's second.
    chosen = routing.experts.T.reshape(-1)
    taken = jax.nn.one_hot(chosen, num_experts, dtype=jnp.int32)
    row = (jnp.cumsum(taken, axis=0) * taken).sum(-1) - 1
    token = jnp.tile(jnp.arange(num_tokens), count)
    # What finds no room is written, and read, outside of the buffer; so is what goes to no expert.
    buffer = jnp.zeros((num_experts, capacity, x.shape[1]), x.dtype).at[chosen, row].set(x[token], mode="drop")

    def product(y: Array, kernels: Array) -> Array:
        flat = jnp.einsum("ecd,edf->ecf", y, kernels.astype(y.dtype), preferred_element_type=jnp.float32)
        return flat.astype(y.dtype)

    found = place(_apply(place(buffer), experts, activation, product))
    back = found.at[chosen, row].get(mode="fill", fill_value=0).astype(jnp.float32)
    weighted = back * routing.weights.T.reshape(-1)[:, None]
    return weighted.reshape(count, num_tokens, -1).sum(0).astype(x.dtype)


def _apply(y: Array, experts: Experts, activation: Activation, product: Callable[[Array, Array], Array]) -> Array:
    hidden = product(y, experts.w_in)
    hidden = activation(hidden) if experts.w_gate is None else activation(product(y, experts.w_gate)) * hidden
    return product(hidden, experts.w_out)
