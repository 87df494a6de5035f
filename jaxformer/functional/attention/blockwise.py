"""Attention block by block, with an online softmax: the full array of weights is never stored.

Memory is O(T + S) forward and backward, for any mask, bias and dropout, because each tile of the mask and of the
dropout bits is computed when it is needed. Blocks that `Mask.key_range` rules out are not visited, so restricted
attention, ``mask=window(W)``, costs O(T W). Blocks that `Mask.live_ranges` rules out for all rows of the batch in the
same loop, such as padding and the other segments of a packed row, are not visited either. The loops run over blocks and
are never unrolled, so compile time does not grow with length.

`forward` and `backward` also accept a shard of the keys, which is how ring attention uses them.

Milakov and Gimelshein 2018 (online softmax); Rabe and Staats 2021; Dao et al. 2022 (FlashAttention). Variables have
the names of FlashAttention-2 (Dao 2023), and comments cite its lines: the forward pass is Algorithm 1, with m the
highest logit of each row so far, l the sum of the exponentials of the others relative to it, O the sum of values, and
alpha the factor by which a new m shrinks both; the backward pass is Algorithm 2, with delta for its D.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxformer import targets
from jaxformer.axes import vary_alike
from jaxformer.functional.attention import tiles
from jaxformer.functional.attention.base import LOW, RESIDUAL, Request, add_sinks, is_nonempty, sink_gradients
from jaxformer.functional.attention.tiles import BiasArrays, Location, Origin, Tile, Tiling, Varying
from jaxformer.functional.bias import Bias

HEADS = 8
"""The number of heads whose tiles fit in a CPU's cache; processing 64 heads at once takes 1.6 times as long."""


def attention(
    request: Request,
    *,
    query_block: int | None = None,
    key_block: int | None = None,
    dims: tuple[int, int, int, int] | None = None,
    origin: Origin = (0, 0),
) -> Float[Array, "B T N J"]:
    """Computes the result of `reference.attention` in blocks of at most these sizes.

    Args:
      query_block, key_block: the numbers of queries and keys in a tile; `block_size` by default.
      dims: the full (B, N, T, S) if the arrays are a shard of the batch and the heads. Mask and bias may cover the full
        arrays; dropout always does.
      origin: the indices of the shard's first row and first head.

    Raises:
      ValueError: the arrays are a shard, and the bias combines queries with arrays of all rows or heads.
    """
    if dims is not None and isinstance(request.bias, Bias):
        check_bias_of_shard(request.bias, request.query, dims, "blockwise")
    num_queries, num_keys = request.query.shape[1], request.key.shape[1]
    if 0 in (request.query.shape[0], num_queries, num_keys):
        return jnp.zeros((*request.query.shape[:3], request.value.shape[3]), request.query.dtype)
    largest = query_block or tiles.block_size(request), key_block or tiles.block_size(request)
    # As few blocks as possible, of equal size: 384 positions are two blocks of 192, not one of 256 and a half-empty
    # one.
    query_size = -(-num_queries // -(-num_queries // largest[0]))
    key_size = -(-num_keys // -(-num_keys // largest[1]))
    query_padding, key_padding = -num_queries % query_size, -num_keys % key_size
    tiling = make_tiling(request, (query_size, key_size), unpadded=not query_padding and not key_padding)
    tiling = dataclasses.replace(tiling, dims=dims or tiling.dims)
    rows = origin[0], request.query.shape[0]
    ranges = tiles.key_ranges(request.mask, num_queries, query_size, rows=rows, rows_per_part=tiling.part[0])
    bounds = tiles.key_bounds(ranges, np.arange(0, num_keys, key_size), key_size)
    varying = Varying(bounds, request.mask, request.dropout_key, origin=origin)
    query, key, value = (
        jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) if padding else x
        for x, padding in ((request.query, query_padding), (request.key, key_padding), (request.value, key_padding))
    )
    arrays = vary_alike((query, key, value, bias_arrays(request), request.sinks, varying))
    return _attend(tiling, *arrays)[:, :num_queries]


def bias_arrays(request: Request) -> BiasArrays:
    """Returns the arrays of a bias that is computed tile by tile, or the array of another one."""
    return tuple(jax.tree.leaves(request.bias)) if isinstance(request.bias, Bias) else request.bias


def check_bias_of_shard(bias: Bias, query: Array, dims: tuple[int, int, int, int], name: str) -> None:
    """Checks that a bias can compute its tile from a shard of the batch and the heads."""
    shard = jax.ShapeDtypeStruct((query.shape[0], query.shape[2], 1, query.shape[3]), jnp.float32)
    position = jax.ShapeDtypeStruct((1,), jnp.int32)

    def tile(bias: Bias, query: Array, t: Array, s: Array) -> Array:
        return (bias if shard.shape[1] == dims[1] else bias.take_heads(0, shard.shape[1])).tile(query, t, s)

    try:
        jax.eval_shape(tile, bias, shard, position, position)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} attention cannot do this: {type(bias).__name__} works on the queries of all {dims[1]} heads of "
            f"{dims[0]} rows, and a device has {shard.shape[1]} heads of {shard.shape[0]} rows; do not shard them, or "
            "define take_heads"
        ) from error


def make_tiling(request: Request, blocks: tuple[int, int], *, unpadded: bool) -> Tiling:
    """Returns the tiling of a request."""
    batch, num_queries, num_heads, _ = request.query.shape
    dims = (batch, num_heads, num_queries, request.key.shape[1])
    structure = jax.tree.structure(request.bias)
    return Tiling(dims, blocks, _part(request), request.scale, request.score, request.rate, structure, unpadded)


def _part(request: Request) -> tuple[int, int]:
    """Returns the numbers of rows and key heads whose tiles fit in a single CPU's cache; all on other devices."""
    batch, num_kv_heads = request.query.shape[0], request.key.shape[2]
    single_cpu = [device.platform for device in targets.devices()] == ["cpu"]
    if not single_cpu or isinstance(request.bias, Bias):  # a Bias may hold values for every row or head
        return batch, num_kv_heads

    def largest_divisor(count: int, heads_each: int) -> int:
        return max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * heads_each <= HEADS))

    heads = largest_divisor(num_kv_heads, request.group)
    if heads < num_kv_heads:
        return 1, heads
    return largest_divisor(batch, heads * request.group), heads


def forward(
    tiling: Tiling, query: Array, key: Array, value: Array, bias: BiasArrays, varying: Varying
) -> tuple[Float[Array, "B T N J"], Float[Array, "B T N 2"]]:
    """Returns the output and the log-sum-exp of every row, both float32; 0 and `LOW` (twice) in an empty row.

    The log-sum-exp is stored as two terms, m and log l: next to a bias of -1e9, float32 would lose log l in their sum.
    Neither includes sinks.
    """
    bias = _pad_bias(tiling, bias)

    def visit_row(tile_row: tuple[Array, Array]) -> tuple[Array, Array]:
        index, (first, last) = tile_row
        location = tiles.location_of(tiling, key, varying, index)
        query_block = tiles.queries_at(tiling, query, key, location)
        shape = query_block.shape[:-1]

        def visit(column: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            O, m, l = carry
            tile = tiles.tile_at(tiling, varying, query_block, key, value, location, column)
            S = jnp.where(tile.allowed, _logits(tiling, tile, query_block, bias, location, column), LOW)  # line 8
            # No result depends on m, and the derivative of a maximum divides by 0 if XLA computes it twice.
            new_m = jnp.maximum(m, jax.lax.stop_gradient(S.max(-1)))  # line 9
            alpha = jnp.exp(m - new_m)
            P = jnp.where(tile.allowed, jnp.exp(S - new_m[..., None]), 0.0)
            l = l * alpha + P.sum(-1)
            if tile.kept is not None:
                P = jnp.where(tile.kept, P * (1 / (1 - tiling.rate)), 0.0)
            return O * alpha[..., None] + _mix(P.astype(value.dtype), tile.value), new_m, l  # line 10

        zeros = lambda *dims: jnp.zeros((*shape, *dims), jnp.float32)
        initial = (zeros(value.shape[-1]), jnp.full(shape, LOW, jnp.float32), zeros())  # line 5
        O, m, l = jax.lax.fori_loop(first, last, visit, vary_alike((initial, query))[0])
        empty = l == 0
        safe_l = jnp.where(empty, 1.0, l)
        # A weight of 0 is not enough: a value that other rows see may be NaN.
        log_l = jnp.where(empty, LOW, jnp.log(safe_l))
        return jnp.where(empty[..., None], 0.0, O / safe_l[..., None]), jnp.stack([m, log_l], -1)  # lines 12, 13

    output, logsumexp = jax.lax.map(visit_row, tiles.tile_rows(tiling, key, varying))
    return tiles.join_tile_rows(output, query, key), tiles.join_tile_rows(logsumexp, query, key)


BiasGradients: TypeAlias = Array | tuple[Array | None, ...] | None
"""The gradients of the floating-point arrays of a bias; None for others."""


class Saved(NamedTuple):
    """The arrays that the backward pass needs."""

    query: Array
    key: Array
    value: Array
    bias: BiasArrays
    varying: Varying
    output: Array  # [B, T, N, J]; this and the next cover all keys, and the sinks, even if
    logsumexp: Array  # [B, T, N, 2]; `key` and `value` are a shard of them


def backward(
    tiling: Tiling, saved: Saved, upstream: Float[Array, "B T N J"]
) -> tuple[Array, Array, Array, BiasGradients]:
    """Returns the gradients of query, key, value and bias, summed in float32.

    The weights of each block are recomputed from the log-sum-exp. `upstream` is the gradient of the output.
    """
    query, key, value, bias, varying, output, logsumexp = saved
    padded = _pad_bias(tiling, bias)
    # The sum over keys of each weight times its gradient, which the backward pass of a softmax subtracts (line 4).
    delta = (upstream.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1)
    row_arrays = query, upstream, logsumexp[..., :1], logsumexp[..., 1:], delta[..., None]

    def visit_row(sums: tuple[Array, Array, BiasGradients], tile_row: tuple[Array, Array]):
        index, (first, last) = tile_row
        location = tiles.location_of(tiling, key, varying, index)
        blocks = (tiles.queries_at(tiling, x, key, location) for x in row_arrays)
        query_block, dO, m, log_l, delta_block = blocks
        nonempty = is_nonempty(log_l)
        # An empty row, and the gradient of its output, may hold NaN.
        query_block, dO = (jnp.where(nonempty, x, 0) for x in (query_block, dO))
        # On a CPU, XLA has a slow routine for products that sum over the first dimension of both factors, and none in
        # bfloat16. So one factor is transposed, once for all columns; the barrier keeps XLA from undoing it.
        columns = tuple(_rows_of_group(x).swapaxes(2, 3) for x in (query_block, dO))  # [b, K, H, G t]
        columns = jax.lax.optimization_barrier(columns)

        def visit(column: Array, carry: tuple[Array, Array, Array, BiasGradients]):
            dQ, dK, dV, d_bias = carry
            tile = tiles.tile_at(tiling, varying, query_block, key, value, location, column)
            scaled = _products(query_block, tile.key) * tiling.scale
            S = jnp.where(tile.allowed, _logits(tiling, tile, query_block, padded, location, column), LOW)  # line 10
            P = jnp.where(tile.allowed, jnp.exp(S - m - log_l), 0.0)  # line 11
            kept_P, dP = P, _products(dO, tile.value)  # line 13
            if tile.kept is not None:
                kept_P, dP = (jnp.where(tile.kept, x * (1 / (1 - tiling.rate)), 0.0) for x in (P, dP))
            dS = jnp.where(tile.allowed, P * (dP - delta_block), 0.0)  # line 14
            d_scaled = dS
            if tiling.score is not None:  # its slope may be infinite at 0, the logit of a masked pair
                d_scaled = jnp.where(tile.allowed, jax.vjp(tiling.score, scaled)[1](dS)[0], 0.0)
            d_products = (d_scaled * tiling.scale).astype(query.dtype)
            dQ += _mix(d_products, tile.key)  # line 15
            dK = _add_block(tiling, dK, _sum_over_queries(columns[0], d_products), location, column)  # line 16
            kept_P = kept_P.astype(value.dtype)
            dV = _add_block(tiling, dV, _sum_over_queries(columns[1], kept_P), location, column)  # line 12
            if isinstance(bias, tuple):
                d_bias, dQ_of_bias = _through_bias(tiling, bias, d_bias, tile, query_block, dS)
                dQ += dQ_of_bias
            elif isinstance(d_bias, Array):
                d_bias = _add_bias(tiling, d_bias, dS, location, column)
            return dQ, dK, dV, d_bias

        zero = vary_alike((jnp.zeros(query_block.shape, jnp.float32), query))[0]
        dQ, *others = jax.lax.fori_loop(first, last, visit, (zero, *sums))
        return tuple(others), dQ

    zeros = lambda x: jnp.zeros((x.shape[0], x.shape[2], x.shape[3], x.shape[1]), jnp.float32)
    sums = vary_alike((zeros(key), zeros(value), zero_gradients(padded), query))[:3]
    (dK, dV, d_bias), dQ = jax.lax.scan(visit_row, sums, tiles.tile_rows(tiling, key, varying))
    if isinstance(bias, Array) and isinstance(d_bias, Array):
        d_bias = d_bias[:, :, : bias.shape[2], : bias.shape[3]]
    dK, dV = (x.transpose(0, 3, 1, 2) for x in (dK, dV))
    return tiles.join_tile_rows(dQ, query, key), dK, dV, d_bias


def zero_gradients(bias: BiasArrays) -> BiasGradients:
    """Returns float32 zeros for the gradients of a bias (an array, or leaves of a `Bias`); None for integer leaves."""
    zeros = lambda x: jnp.zeros(x.shape, jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else None
    return jax.tree.map(zeros, bias)


def cast_gradients(bias: BiasArrays, sums: BiasGradients) -> Array | tuple[Array | np.ndarray, ...] | None:
    """Returns the sums of `zero_gradients` in the dtypes of the bias; float0 for integer leaves."""
    cast = lambda x, d: np.zeros(x.shape, jax.dtypes.float0) if d is None else d.astype(x.dtype)
    return jax.tree.map(cast, bias, sums)


def _add_block(tiling: Tiling, x: Array, block: Array, location: Location, column: Array) -> Array:
    """Adds the gradient of a block, ``[b, k, X, s]``, to the gradient of all keys or values, ``[B, K, X, S]``."""
    start = location.batch_start, location.head_start, 0, column * tiling.blocks[1]
    return jax.lax.dynamic_update_slice(x, jax.lax.dynamic_slice(x, start, block.shape) + block, start)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    tiling: Tiling, query: Array, key: Array, value: Array, bias: BiasArrays, sinks: Array | None, varying: Varying
) -> Array:
    return add_sinks(*forward(tiling, query, key, value, bias, varying), sinks)[0].astype(query.dtype)


def _attend_forward(tiling, query, key, value, bias, sinks, varying):
    output, logsumexp = add_sinks(*forward(tiling, query, key, value, bias, varying), sinks)
    output, logsumexp = checkpoint_name((output.astype(query.dtype), logsumexp), RESIDUAL)
    return output, (Saved(query, key, value, bias, varying, output, logsumexp), sinks)


def _attend_backward(tiling, residuals, upstream):
    saved, sinks = residuals
    *d_arrays, d_bias = backward(tiling, saved, upstream)
    gradients = (d.astype(x.dtype) for d, x in zip(d_arrays, saved[:3], strict=True))
    d_sinks = sink_gradients(sinks, saved.output, saved.logsumexp, upstream)
    return *gradients, cast_gradients(saved.bias, d_bias), d_sinks, None


_attend.defvjp(_attend_forward, _attend_backward)


def _logits(tiling: Tiling, tile: Tile, query: Array, bias: BiasArrays, location: Location, column: Array) -> Array:
    """Returns the logits of a block, float32 ``[B, K, G, t, s]``."""
    logits = _products(query, tile.key) * tiling.scale
    if tiling.score is not None:
        logits = tiling.score(logits)
    if bias is None:
        return logits
    if isinstance(bias, tuple):
        added = _bias_tile(tiling, bias, query, tile)
    else:
        added = jax.lax.dynamic_slice(bias, *_bias_slice(tiling, bias, query.shape, location, column))
    return logits + tiles.split_heads(added, query.shape[1]).astype(jnp.float32)


def _products(query: Array, key: Array) -> Array:
    """Multiplies ``[B, K, G, t, H]`` by ``[B, K, s, H]``: float32 ``[B, K, G, t, s]``."""
    return _matmul("bkxh,bksh->bkxs", query, key).reshape(*query.shape[:4], key.shape[2])


def _mix(weights: Array, value: Array) -> Array:
    """Multiplies ``[B, K, G, t, s]`` by ``[B, K, s, J]``: float32 ``[B, K, G, t, J]``."""
    return _matmul("bkxs,bksj->bkxj", weights, value).reshape(*weights.shape[:4], value.shape[3])


def _sum_over_queries(x: Array, weights: Array) -> Array:
    """Multiplies ``[B, K, H, G t]`` by ``[B, K, G, t, s]``: float32 ``[B, K, H, s]``, summed over a group's heads."""
    return _matmul("bkhx,bkxs->bkhs", x, weights)


def _matmul(letters: str, *arrays: Array) -> Array:
    """Multiplies matrices for each key head; the queries of all heads that share it form the rows x of one matrix."""
    flat = (_rows_of_group(x) if x.ndim == 5 else x for x in arrays)
    return jnp.einsum(letters, *flat, preferred_element_type=jnp.float32)


def _rows_of_group(x: Array) -> Array:
    """Reshapes ``[B, K, G, t, X]`` to ``[B, K, G t, X]``."""
    return x.reshape(*x.shape[:2], -1, x.shape[4])


def _bias_tile(tiling: Tiling, leaves: Sequence[Array], query: Array, tile: Tile) -> Array:
    """Returns the block that the `Bias` of these leaves adds, ``[b, n, t, s]``."""
    heads = query.reshape(query.shape[0], -1, *query.shape[3:])
    bias: Bias = jax.tree.unflatten(tiling.tree, leaves)
    if heads.shape[1] != tiling.dims[1]:
        bias = bias.take_heads(tile.origin[1], heads.shape[1])
    tile_bias = bias.tile(heads.astype(jnp.float32) * tiling.scale, *tile.positions)
    return tiles.take_part(tile_bias, tile.origin, (heads.shape[0], heads.shape[1]))


def _through_bias(tiling: Tiling, leaves, d_leaves, tile: Tile, query: Array, d_logits: Array):
    """Adds a block to the gradients of a bias's leaves, and returns the gradient of its queries through the bias."""

    def added(learned: tuple[Array | None, ...], query: Array) -> Array:
        merged = [old if new is None else new.astype(old.dtype) for old, new in zip(leaves, learned, strict=True)]
        tile_bias = _bias_tile(tiling, merged, query, tile).astype(jnp.float32)
        return jnp.broadcast_to(tiles.split_heads(tile_bias, query.shape[1]), d_logits.shape)

    learned = tuple(None if d is None else x.astype(jnp.float32) for x, d in zip(leaves, d_leaves, strict=True))
    _, pull = jax.vjp(added, learned, query)
    d_learned, d_query = pull(d_logits)
    return jax.tree.map(jnp.add, d_leaves, d_learned), d_query.astype(jnp.float32)


def _pad_bias(tiling: Tiling, bias: BiasArrays) -> BiasArrays:
    """Pads an array to full blocks, unless it broadcasts: XLA would shift a slice that extends past the end."""
    if bias is None or isinstance(bias, tuple):
        return bias
    missing = [-length % block for length, block in zip(tiling.dims[2:], tiling.blocks, strict=True)]
    padding = [(0, count * (size > 1)) for count, size in zip(missing, bias.shape[2:], strict=True)]
    return jnp.pad(bias, ((0, 0), (0, 0), *padding))


def _bias_slice(
    tiling: Tiling, bias: Array, shape: tuple[int, ...], location: Location, column: Array
) -> tuple[tuple, tuple]:
    """Returns the start and the size of the tile of queries ``[B, K, G, t]`` in an array of biases."""
    group = shape[2]
    sizes = shape[0], shape[1] * group, *tiling.blocks
    starts = (
        location.batch_start,
        location.head_start * group,
        location.query_block * tiling.blocks[0],
        column * tiling.blocks[1],
    )
    within = ((0, 1) if dim == 1 else x for dim, *x in zip(bias.shape, starts, sizes, strict=True))
    start, size = zip(*within, strict=True)
    return start, size


def _add_bias(tiling: Tiling, d_bias: Array, d_logits: Array, location: Location, column: Array) -> Array:
    """Adds a tile to the gradient of a bias, summed over the dimensions in which the bias is broadcast."""
    all_heads = d_logits.reshape(d_logits.shape[0], -1, *d_logits.shape[3:])
    start, size = _bias_slice(tiling, d_bias, d_logits.shape, location, column)
    broadcast = tuple(dim for dim in range(4) if size[dim] == 1 and all_heads.shape[dim] != 1)
    block = all_heads.sum(broadcast, keepdims=True)
    return jax.lax.dynamic_update_slice(d_bias, jax.lax.dynamic_slice(d_bias, start, size) + block, start)
