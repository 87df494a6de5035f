"""Ring attention: the sequence is sharded over the devices of a mesh axis, and keys and values travel around them.

Each device keeps its queries. The shards of keys and values visit one device after another, and the contribution of
each shard to a row is merged by its log-sum-exp. The backward pass sends them around once more, together with their
gradients. Each device needs the memory of one shard, forward and backward, and never holds all keys.

If a sequence is sharded in order, a causal mask gives the last device work for every shard, and the first device work
for its own shard only. In *zigzag* order device r of P holds the chunks r and 2P - 1 - r of 2P, which is load-balanced.

Liu, Zaharia and Abbeel 2023 (ring attention); Brandon et al. 2023 (striped attention, which is load-balanced).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxformer.functional.attention import blockwise
from jaxformer.functional.attention.base import LOW, RESIDUAL, Request, add_sinks, refuse_traced, sink_gradients
from jaxformer.functional.attention.tiles import BLOCK, Origin, Tiling, Varying, block_size, key_bounds, key_ranges
from jaxformer.functional.bias import Bias
from jaxformer.masks import Mask

SumsT = TypeVar("SumsT")
TravelingT = TypeVar("TravelingT")

Visit: TypeAlias = Callable[[SumsT, TravelingT, Array], tuple[SumsT, TravelingT]]
"""A function from a device's own sums, the part that goes around the ring, and its owner, to both."""


def refuse(request: Request) -> str | None:
    """Returns the reason why ring attention cannot compute a request, or None if it can."""
    if request.bias is not None and not isinstance(request.bias, Bias):
        return "a bias must be a Bias, which is computed tile by tile, not a T x S array"
    return refuse_traced(request.score)


def zigzag(x: Array, shards: int, *, axis: int = 1) -> Array:
    """Reorders a dimension so that each of `shards` shards holds an early chunk and the matching late chunk.

    Apply it once, to the tokens and to every other array of the same length, before they are placed on devices.

    Raises:
      ValueError: the length is not a multiple of ``2 * shards``.

    >>> zigzag(jnp.arange(8), 2, axis=0).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    return _reorder(x, shards, axis, _zigzag_order(shards))


def unzigzag(x: Array, shards: int, *, axis: int = 1) -> Array:
    """Restores the order of a dimension that `zigzag` reordered.

    Raises:
      ValueError: the length is not a multiple of ``2 * shards``.

    >>> unzigzag(zigzag(jnp.arange(8), 2, axis=0), 2, axis=0).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return _reorder(x, shards, axis, np.argsort(_zigzag_order(shards)))


def _zigzag_order(shards: int) -> np.ndarray:
    return np.array([chunk for r in range(shards) for chunk in (r, 2 * shards - 1 - r)])


def _reorder(x: Array, shards: int, axis: int, order: np.ndarray) -> Array:
    length = x.shape[axis]
    if length % (2 * shards):
        raise ValueError(f"zigzag over {shards} shards: the length must be a multiple of {2 * shards}, got {length}")
    chunks = x.reshape(*x.shape[:axis], 2 * shards, length // (2 * shards), *x.shape[axis + 1 :])
    return jnp.take(chunks, order, axis=axis).reshape(x.shape)


MeshAxes = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Ring:
    """The ring of devices; hashable, so it can be a static argument."""

    axis: str
    size: int
    dims: tuple[int, int, int, int]  # full B, N, T, S; positions beyond T and S are padding
    mesh_axes: tuple[MeshAxes, MeshAxes] = (None, None)  # over which rows of the batch and heads are sharded
    zigzag: bool = False

    @property
    def chunks(self) -> np.ndarray:
        """The indices of the chunks of the sequence that each device holds, ``[P, 1 or 2]``."""
        return _zigzag_order(self.size).reshape(self.size, 2) if self.zigzag else np.arange(self.size)[:, None]

    def positions(self, rank: int | Array, local_length: int) -> Array:
        """Returns the positions of a sequence that a device holds; each device holds `local_length` of them."""
        chunks = jnp.asarray(self.chunks)[rank]
        size = local_length // chunks.shape[0]
        return (chunks[:, None] * size + jnp.arange(size)[None]).reshape(-1)

    def origin(self, query: Array) -> Origin:
        """Returns the first row of the batch and the first head that a device holds."""
        first = lambda axis, count: 0 if axis is None else jax.lax.axis_index(axis) * count
        return first(self.mesh_axes[0], query.shape[0]), first(self.mesh_axes[1], query.shape[2])

    def block(self, local_length: int, largest: int) -> int:
        """Returns the largest block size, at most `largest`, that divides each chunk of a device."""
        chunk = local_length // self.chunks.shape[1]
        return max(size for size in range(1, min(largest, chunk) + 1) if chunk % size == 0)


def fill(x: Array, shards: int, *, block: int = BLOCK) -> Array:
    """Pads the second dimension with zeros, so that all shards hold the same number of blocks of at most `block`."""
    shard = -(-x.shape[1] // shards)
    blocks = -(-shard // block)
    length = shards * blocks * -(-shard // blocks)
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1])) + ((0, 0),) * (x.ndim - 2))


def attention(
    request: Request, ring: Ring, *, query_block: int | None = None, key_block: int | None = None
) -> Float[Array, "B T N J"]:
    """Computes the output for a device's own queries; call it inside ``jax.shard_map``.

    The mask, bias and dropout of the request cover the full batch, all heads and the full sequences, while query, key
    and value are the device's shards. `jaxformer.sharding.ring_attention` applies ``jax.shard_map``.

    Raises:
      ValueError: the batch or the heads are sharded, and the bias combines queries with arrays of all rows or heads.
    """
    if isinstance(request.bias, Bias) and ring.mesh_axes != (None, None):
        blockwise.check_bias_of_shard(request.bias, request.query, ring.dims, "ring")
    local_queries, local_keys = request.query.shape[1], request.key.shape[1]
    query_block, key_block = query_block or block_size(request), key_block or block_size(request)
    blocks = ring.block(local_queries, query_block), ring.block(local_keys, key_block)
    tiling = blockwise.make_tiling(request, blocks, unpadded=False)
    tiling = dataclasses.replace(tiling, dims=ring.dims)
    rows = ring.origin(request.query)[0], request.query.shape[0]
    ranges = jnp.asarray(_key_ranges(request.mask, ring, local_queries, blocks[0], rows))
    shared = ranges, request.mask, request.dropout_key
    bias = blockwise.bias_arrays(request)
    return _attend(tiling, ring, request.query, request.key, request.value, bias, request.sinks, shared)


def _key_ranges(
    mask: Mask | None, ring: Ring, local_length: int, block: int, rows: tuple[int | Array, int]
) -> np.ndarray | Array:
    """Returns the range of keys that each block of queries of each device may see in any row, ``[P, blocks, 2]``."""
    ranges = key_ranges(mask, ring.size * local_length, block, rows=rows, rows_per_part=rows[1])
    return ranges.reshape(ring.chunks.size, -1, 2)[ring.chunks].reshape(ring.size, -1, 2)


def _varying(tiling: Tiling, ring: Ring, shared, query: Array, key: Array, owner: Array):
    """Returns the positions and bounds of this device's queries and of the keys that belong to device `owner`."""
    ranges, mask, dropout_key = shared
    rank = jax.lax.axis_index(ring.axis)
    positions = ring.positions(rank, query.shape[1]), ring.positions(owner, key.shape[1])
    bounds = key_bounds(ranges[rank], positions[1][:: tiling.blocks[1]], tiling.blocks[1])
    return Varying(bounds[None], mask, dropout_key, positions, ring.origin(query))


def _round(
    ring: Ring, visit: Visit[SumsT, TravelingT], sums: SumsT, traveling: TravelingT, *, to_owner: bool
) -> tuple[SumsT, TravelingT]:
    """Calls ``sums, traveling = visit(sums, traveling, owner)`` at each device of the ring.

    If `to_owner`, `traveling` ends on the device where it started, otherwise on the last one that it visits.
    """
    rank = jax.lax.axis_index(ring.axis)
    next_device = [(i, (i + 1) % ring.size) for i in range(ring.size)]

    def visit_and_pass(carry: tuple[SumsT, TravelingT], step: Array) -> tuple[tuple[SumsT, TravelingT], None]:
        sums, traveling = visit(*carry, (rank - step) % ring.size)
        return (sums, jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axis, next_device), traveling)), None

    carry = sums, traveling
    if to_owner:
        return jax.lax.scan(visit_and_pass, carry, jnp.arange(ring.size))[0]
    # With barriers, XLA compiles the last visit, and a loop of one visit, like other visits: results are bitwise equal.
    barrier, last = jax.lax.optimization_barrier, ring.size - 1
    sums, traveling = barrier(jax.lax.scan(visit_and_pass, barrier(carry), jnp.arange(last))[0])
    return visit(sums, traveling, (rank - last) % ring.size)


def _forward(tiling, ring, query, key, value, bias, shared) -> tuple[Array, Array]:

    def visit(sums, traveling, owner):
        output, logsumexp = sums
        key, value = traveling
        varying = _varying(tiling, ring, shared, query, key, owner)
        new_output, new_logsumexp = blockwise.forward(tiling, query, key, value, bias, varying)
        m = jnp.maximum(logsumexp[..., :1], new_logsumexp[..., :1])
        # Relative to the higher m. An empty row has `LOW` or less in both, and 1 times its output of 0 stays 0.
        old, new = (x[..., :1] - m + x[..., 1:] for x in (logsumexp, new_logsumexp))
        log_l = jnp.logaddexp(old, new)
        output = output * jnp.exp(old - log_l) + new_output * jnp.exp(new - log_l)
        return (output, jnp.concatenate([m, log_l], -1)), traveling

    dims = query.shape[:3]
    initial = jnp.zeros((*dims, value.shape[-1]), jnp.float32), jnp.full((*dims, 2), LOW, jnp.float32)
    return _round(ring, visit, initial, (key, value), to_owner=False)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(tiling, ring, query, key, value, bias, sinks, shared):
    return add_sinks(*_forward(tiling, ring, query, key, value, bias, shared), sinks)[0].astype(query.dtype)


def _attend_forward(tiling, ring, query, key, value, bias, sinks, shared):
    output, logsumexp = add_sinks(*_forward(tiling, ring, query, key, value, bias, shared), sinks)
    output, logsumexp = checkpoint_name((output.astype(query.dtype), logsumexp), RESIDUAL)
    return output, (query, key, value, bias, sinks, shared, output, logsumexp)


def _attend_backward(tiling, ring, saved, upstream):
    query, key, value, bias, sinks, shared, output, logsumexp = saved

    def visit(sums, traveling, owner):
        d_query, d_bias = sums
        key, value, d_key, d_value = traveling
        varying = _varying(tiling, ring, shared, query, key, owner)
        visited = blockwise.Saved(query, key, value, bias, varying, output, logsumexp)
        more_query, more_key, more_value, more_bias = blockwise.backward(tiling, visited, upstream)
        sums = d_query + more_query, jax.tree.map(jnp.add, d_bias, more_bias)
        return sums, (key, value, d_key + more_key, d_value + more_value)

    zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
    traveling = (key, value, zeros(key), zeros(value))
    sums = zeros(query), blockwise.zero_gradients(bias)
    (d_query, d_bias), (_, _, d_key, d_value) = _round(ring, visit, sums, traveling, to_owner=True)
    gradients = (d.astype(x.dtype) for d, x in ((d_query, query), (d_key, key), (d_value, value)))
    d_sinks = sink_gradients(sinks, output, logsumexp, upstream)
    return *gradients, blockwise.cast_gradients(bias, d_bias), d_sinks, None


_attend.defvjp(_attend_forward, _attend_backward)
