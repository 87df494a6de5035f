"""Ring attention: a sequence that lies in pieces on the devices of a mesh axis, and keys that travel round them.

Each device keeps its queries.  The pieces of keys and values visit one device after another; what a piece adds to a
row is merged by its log-sum-exp.  The backward pass sends them round once more, their gradients with them, so memory
is that of one piece, forward and backward, and no device ever holds all keys.

Under a causal mask the last device of a sequence cut in order has work for every visitor, the first for none but its
own.  In *zigzag* order device r of P holds the pieces r and 2P - 1 - r of 2P, and all have the same to do.

Liu, Zaharia and Abbeel 2023 (ring attention); Brandon et al. 2023 (striped, the load balanced).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer.functional.attention import blockwise
from jaxformer.functional.attention.base import Request
from jaxformer.functional.attention.tiles import Plan, Varying
from jaxformer.functional.bias import Bias
from jaxformer.masks import Mask


def refuse(request: Request) -> str | None:
    """Why ring attention cannot do this; None where it can."""
    if request.bias is not None and not isinstance(request.bias, Bias):
        return "a bias must be a Bias, which is asked for tile by tile, not a T x S array"
    return None


def zigzag(x: Array, shards: int, *, axis: int = 1) -> Array:
    """Reorders a dimension so that cutting it into `shards` gives each an early piece and the late one that matches.

    Do it once, to tokens and whatever else has their length, before they are placed.

    Raises:
      ValueError: the length is no multiple of ``2 * shards``.

    >>> zigzag(jnp.arange(8), 2, axis=0).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    return _reorder(x, shards, axis, _zigzag_order(shards))


def unzigzag(x: Array, shards: int, *, axis: int = 1) -> Array:
    """The way back.

    >>> unzigzag(zigzag(jnp.arange(8), 2, axis=0), 2, axis=0).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return _reorder(x, shards, axis, np.argsort(_zigzag_order(shards)))


def _zigzag_order(shards: int) -> np.ndarray:
    return np.array([piece for r in range(shards) for piece in (r, 2 * shards - 1 - r)])


def _reorder(x: Array, shards: int, axis: int, order: np.ndarray) -> Array:
    length = x.shape[axis]
    if length % (2 * shards):
        raise ValueError(f"zigzag over {shards} shards needs a length that 2 x {shards} divides, got {length}")
    pieces = x.reshape(*x.shape[:axis], 2 * shards, length // (2 * shards), *x.shape[axis + 1 :])
    return jnp.take(pieces, order, axis=axis).reshape(x.shape)


@dataclasses.dataclass(frozen=True)
class Ring:
    """The ring, as each device on it sees it; hashable, so it is static in a program."""

    axis: str
    size: int
    dims: tuple[int, int, int, int]  # B, N, T, S of the whole; positions beyond T and S are there to fill up the pieces
    cuts: tuple[Any, Any] = (None, None)  # axes along which rows of the batch and heads are cut
    zigzag: bool = False

    @property
    def pieces(self) -> np.ndarray:
        """Which pieces of the sequence each device holds, ``[P, 1 or 2]``."""
        return _zigzag_order(self.size).reshape(self.size, 2) if self.zigzag else np.arange(self.size)[:, None]

    def places(self, rank: Any, local: int) -> Array:
        """The positions that a device holds of a sequence of which each holds `local`."""
        held = jnp.asarray(self.pieces)[rank]
        size = local // held.shape[0]
        return (held[:, None] * size + jnp.arange(size)[None]).reshape(-1)

    def origin(self, query: Array) -> tuple[Any, Any]:
        """The first row of the batch and the first head of those that a device holds."""
        held = query.shape[0], query.shape[2]
        first = lambda axis, count: 0 if axis is None else jax.lax.axis_index(axis) * count
        return first(self.cuts[0], held[0]), first(self.cuts[1], held[1])

    def block(self, local: int, most: int) -> int:
        """The largest size of blocks, up to `most`, that divides what a device holds and lies across no seam."""
        piece = local // self.pieces.shape[1]
        return max(size for size in range(1, min(most, piece) + 1) if piece % size == 0)


def fill(x: Array, shards: int, *, block: int = blockwise.QUERY_BLOCK) -> Array:
    """Lengthens the second dimension with zeros, so that `shards` hold equally many blocks, at most `block` long."""
    piece = -(-x.shape[1] // shards)
    blocks = -(-piece // block)
    length = shards * blocks * -(-piece // blocks)
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1])) + ((0, 0),) * (x.ndim - 2))


def attention(
    request: Request,
    ring: Ring,
    *,
    query_block: int = blockwise.QUERY_BLOCK,
    key_block: int = blockwise.KEY_BLOCK,
) -> Float[Array, "B T N J"]:
    """What a device of the ring makes of its own queries, keys and values; to be called inside ``jax.shard_map``.

    The mask of the request, its bias and its dropout speak of the whole batch, all heads and the whole sequences.
    `jaxformer.sharding.ring_attention` does the mapping.

    Raises:
      ValueError: a bias that meets a query with what it holds for each head, where the heads are cut.
    """
    if isinstance(request.bias, Bias) and ring.cuts != (None, None):
        _check_bias(request.bias, request.query, ring)
    local_queries, local_keys = request.query.shape[1], request.key.shape[1]
    blocks = ring.block(local_queries, query_block), ring.block(local_keys, key_block)
    plan = blockwise.make_batch_plan(request, blocks, whole=False)
    plan = dataclasses.replace(plan, dims=ring.dims)
    rows = ring.origin(request.query)[0], request.query.shape[0]
    ranges = jnp.asarray(_key_ranges(request.mask, ring, local_queries, blocks[0], rows))
    shared = ranges, request.mask, None if request.dropout is None else request.dropout.key
    bias = None if request.bias is None else tuple(jax.tree.leaves(request.bias))
    return _attend(plan, ring, request.query, request.key, request.value, bias, shared)


def _check_bias(bias: Bias, query: Array, ring: Ring) -> None:
    """A tile of a bias is one of all rows and heads; made of some queries it may be of those, or fail to be made."""
    held = jax.ShapeDtypeStruct((query.shape[0], query.shape[2], 1, query.shape[3]), jnp.float32)
    place = jax.ShapeDtypeStruct((1,), jnp.int32)
    try:
        jax.eval_shape(lambda bias, query, t, s: bias.tile(query, t, s), bias, held, place, place)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"ring attention cannot do this: {type(bias).__name__} works on the queries of all {ring.dims[1]} heads of "
            f"{ring.dims[0]} rows, and a device has {held.shape[1]} heads of {held.shape[0]} rows; do not cut them"
        ) from error


def _key_ranges(mask: Mask | None, ring: Ring, local: int, block: int, rows: tuple[Any, int]) -> Any:
    """What each block of queries may see in any of the rows, for each device: ``[P, blocks, 2]``."""
    whole = blockwise.key_ranges(mask, ring.size * local, block, rows=rows, together=rows[1])
    return whole.reshape(ring.pieces.size, -1, 2)[ring.pieces].reshape(ring.size, -1, 2)


def _varying(plan: Plan, ring: Ring, shared: Any, query: Array, key: Array, owner: Array):
    """What a piece of the keys is to this device: positions, and the blocks to visit."""
    ranges, mask, dropout_key = shared
    rank = jax.lax.axis_index(ring.axis)
    places = ring.places(rank, query.shape[1]), ring.places(owner, key.shape[1])
    bounds = blockwise.key_bounds(ranges[rank], places[1][:: plan.blocks[1]], plan.blocks[1])
    return Varying(bounds[None], mask, dropout_key, places, ring.origin(query))


def _round(
    ring: Ring, visit: Callable[[Any, Any, Array], tuple[Any, Any]], sums: Any, traveling: Any
) -> tuple[Any, Any]:
    """``sums, traveling = visit(sums, traveling, owner)`` at every stop; then everything is home again."""
    rank = jax.lax.axis_index(ring.axis)
    onward = [(i, (i + 1) % ring.size) for i in range(ring.size)]

    def stop(carry: tuple[Any, Any], step: Array) -> tuple[tuple[Any, Any], None]:
        sums, traveling = visit(*carry, (rank - step) % ring.size)
        return (sums, jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axis, onward), traveling)), None

    return jax.lax.scan(stop, (sums, traveling), jnp.arange(ring.size))[0]


def _forward(plan, ring, query, key, value, bias, shared):

    def visit(sums, traveling, owner):
        output, log_weight = sums
        varying = _varying(plan, ring, shared, query, traveling[0], owner)
        more, log_more = blockwise.forward(plan, query, *traveling, bias, varying)
        top = jnp.maximum(log_weight[..., :1], log_more[..., :1])
        # Above the higher top; an empty share is `LOW` or less, as is what two make: 1 times the 0 that both hold.
        old, new = (x[..., :1] - top + x[..., 1:] for x in (log_weight, log_more))
        rest = jnp.logaddexp(old, new)
        output = output * jnp.exp(old - rest) + more * jnp.exp(new - rest)
        return (output, jnp.concatenate([top, rest], -1)), traveling

    rows = query.shape[:3]
    nothing = jnp.zeros((*rows, value.shape[-1]), jnp.float32), jnp.full((*rows, 2), blockwise.LOW, jnp.float32)
    return _round(ring, visit, nothing, (key, value))[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(plan, ring, query, key, value, bias, shared):
    return _forward(plan, ring, query, key, value, bias, shared)[0].astype(query.dtype)


def _attend_forward(plan, ring, query, key, value, bias, shared):
    output, log_weight = _forward(plan, ring, query, key, value, bias, shared)
    output = output.astype(query.dtype)
    return output, (query, key, value, bias, shared, output, log_weight)


def _attend_backward(plan, ring, saved, upstream):
    query, key, value, bias, shared, output, log_weight = saved

    def visit(sums, traveling, owner):
        d_query, d_bias = sums
        key, value, d_key, d_value = traveling
        varying = _varying(plan, ring, shared, query, key, owner)
        found = blockwise.backward(plan, query, key, value, bias, varying, output, log_weight, upstream)
        more, one_key, one_value, one_bias = found
        return (d_query + more, jax.tree.map(jnp.add, d_bias, one_bias)), (
            key,
            value,
            d_key + one_key,
            d_value + one_value,
        )

    zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
    traveling = (key, value, zeros(key), zeros(value))
    sums = zeros(query), blockwise.no_slopes(bias)
    (d_query, d_bias), (_, _, d_key, d_value) = _round(ring, visit, sums, traveling)
    narrow = (d.astype(x.dtype) for d, x in ((d_query, query), (d_key, key), (d_value, value)))
    return *narrow, blockwise.slopes(bias, d_bias), None


_attend.defvjp(_attend_forward, _attend_backward)
