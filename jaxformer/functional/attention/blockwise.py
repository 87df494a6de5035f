"""Attention block by block, with an online softmax: the weights never exist as a whole.

Memory is O(T + S) forward and backward, for any mask, bias and dropout: a tile of the mask is asked for when it is
needed, a tile of dropout is hashed again.  Blocks that `Mask.key_range` rules out are not visited, so restricted
attention, ``mask=window(W)``, costs O(T W); nor are those that `Mask.live_ranges` rules out for all rows of the batch
that are worked on together: padding, and the other segments of a packed row.  The loops run over blocks and are never
unrolled: compile time does not grow with length.

`forward` and `backward` may be given a piece of the keys, which is how ring attention uses them.

Milakov and Gimelshein 2018 (online softmax); Rabe and Staats 2021; Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer import targets
from jaxformer.functional.attention.base import Request
from jaxformer.functional.attention.tiles import (
    Plan,
    Spot,
    Tile,
    Varying,
    here,
    join,
    numbered,
    queries_at,
    spot_of,
    spread,
    tile_at,
)
from jaxformer.functional.bias import Bias
from jaxformer.masks import Mask

QUERY_BLOCK, KEY_BLOCK = 256, 256
HEADS = 8
"""Tiles of this size, for so many heads, stay in a cache; all of 64 heads at a time take 1.6 times as long on CPU."""

LOW = float(np.finfo(np.float32).min)
"""The logit of a forbidden pair, and both parts of the log-sum-exp of a query that sees nothing."""


def attention(
    request: Request,
    *,
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    dims: tuple[int, int, int, int] | None = None,
    origin: tuple[Any, Any] = (0, 0),
) -> Float[Array, "B T N J"]:
    """The same result as `reference.attention`, in blocks of at most these sizes.

    Where the arrays are some rows and heads of a whole of `dims` (B, N, T, S), `origin` is the first of each; mask and
    bias may speak of the whole, and dropout does.
    """
    num_queries, num_keys = request.query.shape[1], request.key.shape[1]
    if num_queries == 0 or num_keys == 0:
        return jnp.zeros((*request.query.shape[:3], request.value.shape[3]), request.query.dtype)
    # As few blocks as that allows, of one size: 384 positions are two blocks of 192, not one of 256 and one half empty.
    query_block = -(-num_queries // -(-num_queries // query_block))
    key_block = -(-num_keys // -(-num_keys // key_block))
    rows, columns = -num_queries % query_block, -num_keys % key_block
    plan = make_batch_plan(request, (query_block, key_block), whole=not rows and not columns)
    plan = dataclasses.replace(plan, dims=dims or plan.dims)
    rows_here = origin[0], request.query.shape[0]
    ranges = key_ranges(request.mask, num_queries, query_block, rows=rows_here, together=plan.part[0])
    bounds = key_bounds(ranges, np.arange(0, num_keys, key_block), key_block)
    dropout_key = None if request.dropout is None else request.dropout.key
    varying = Varying(jnp.asarray(bounds), request.mask, dropout_key, origin=origin)
    query, key, value = (
        jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0))) if more else x
        for x, more in ((request.query, rows), (request.key, columns), (request.value, columns))
    )
    bias = tuple(jax.tree.leaves(request.bias)) if isinstance(request.bias, Bias) else request.bias
    return _attend(plan, query, key, value, bias, varying)[:, :num_queries]


def make_batch_plan(request: Request, blocks: tuple[int, int], *, whole: bool) -> Plan:
    """The plan of a request."""
    batch, num_queries, num_heads, _ = request.query.shape
    rate = 0.0 if request.dropout is None else request.dropout.rate
    tree = jax.tree.structure(request.bias) if isinstance(request.bias, Bias) else None
    dims = (batch, num_heads, num_queries, request.key.shape[1])
    return Plan(dims, blocks, _part(request), request.scale, request.score, rate, tree, whole)


def _part(request: Request) -> tuple[int, int]:
    """Rows and key heads for which a tile stays in the cache; all of them where there is more than one core to feed."""
    batch, num_kv_heads = request.query.shape[0], request.key.shape[2]
    alone = [device.platform for device in targets.devices()] == ["cpu"]
    if not alone or isinstance(request.bias, Bias):  # which may hold something for every row or head
        return batch, num_kv_heads
    most = lambda count, each: max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * each <= HEADS))
    heads = most(num_kv_heads, request.group)
    return (most(batch, heads * request.group) if heads == num_kv_heads else 1), heads


def key_ranges(mask: Mask | None, num_queries: int, query_block: int, *, rows: tuple[Any, int], together: int) -> Any:
    """The keys outside of which a block of queries sees none, from and up to: ``int32 [parts or 1, blocks, 2]``.

    A part is `together` of the `rows` of the batch that are here, the first of them and their number.  An array of
    NumPy, with one part, where the data say nothing.
    """
    start = np.arange(0, num_queries, query_block)
    stop = np.minimum(start + query_block, num_queries)
    first, last = (Mask() if mask is None else mask).ranges(start, stop)
    if isinstance(first, np.ndarray):
        return np.stack([first, last], -1).swapaxes(0, 1)
    ranges = jnp.stack([first, last], -1).swapaxes(0, 1)
    if len(ranges) not in (1, rows[1]):  # the mask speaks of the whole
        ranges = jax.lax.dynamic_slice_in_dim(ranges, *rows)
    if len(ranges) > 1:
        ranges = _hull(ranges.reshape(-1, together, *ranges.shape[1:]))
    return _common(ranges)


def _hull(ranges: Array) -> Array:
    """The least range that holds those along the second dimension, of which empty ones have nothing to hold."""
    first, last = ranges[..., 0], ranges[..., 1]
    filled = first < last
    least = jnp.where(filled, first, np.iinfo(np.int32).max).min(1)
    return jnp.stack([least, jnp.where(filled, last, 0).max(1)], -1)


@jax.custom_batching.custom_vmap
def _common(ranges: Array) -> Array:
    """Under `vmap` one range for all: a loop whose bounds differ would copy all that it carries at every turn."""
    return ranges


@_common.def_vmap
def _(size, is_mapped, ranges):
    del size, is_mapped  # of one argument, which is mapped
    return _common(_hull(ranges.swapaxes(0, 1))), False


def key_bounds(ranges: Any, starts: Any, key_block: int) -> Any:
    """From key ranges ``[..., 2]`` to the first and one past the last of the key blocks that begin at `starts`."""
    numbers = jnp if isinstance(ranges, jax.Array) or isinstance(starts, jax.Array) else np
    starts = starts.reshape((1,) * (ranges.ndim - 1) + (-1,))
    first, last = ranges[..., :1], ranges[..., 1:]
    needed = (starts < last) & (starts + key_block > first) & (last > first)
    end = needed.shape[-1] - needed[..., ::-1].argmax(-1)
    found = numbers.stack([needed.argmax(-1), numbers.where(needed.any(-1), end, 0)], -1)
    return found.astype(jax.dtypes.canonicalize_dtype(int))  # as all other places: slices take integers of one dtype


def forward(
    plan: Plan, query: Array, key: Array, value: Array, bias: Any, varying: Varying
) -> tuple[Float[Array, "B T N J"], Float[Array, "B T N 2"]]:
    """Output and log-sum-exp of every row, both float32; 0 and `LOW` in an empty row.

    The latter in two parts, the highest logit and the rest: beside a bias of -1e9 the rest would be lost in their sum.
    """
    bias = _pad_bias(plan, bias)

    def visit_row(given: tuple[Array, Array]) -> tuple[Array, Array]:
        number, (first, last) = given
        spot = spot_of(plan, key, varying, number)
        query_block = queries_at(plan, query, key, spot)
        shape = query_block.shape[:-1]

        def visit(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            total, top, weight = carry
            tile = tile_at(plan, varying, query_block, key, value, spot, j)
            logits = jnp.where(tile.allowed, _logits(plan, tile, query_block, bias, spot, j), LOW)
            higher = jnp.maximum(top, logits.max(-1))
            shrink = jnp.exp(top - higher)
            weights = jnp.where(tile.allowed, jnp.exp(logits - higher[..., None]), 0.0)
            weight = weight * shrink + weights.sum(-1)
            if tile.kept is not None:
                weights = jnp.where(tile.kept, weights * (1 / (1 - plan.rate)), 0.0)
            return total * shrink[..., None] + _mix(weights.astype(value.dtype), tile.value), higher, weight

        zeros = lambda *more: jnp.zeros((*shape, *more), jnp.float32)
        nothing = (zeros(value.shape[-1]), jnp.full(shape, LOW, jnp.float32), zeros())
        total, top, weight = jax.lax.fori_loop(first, last, visit, nothing)
        empty = weight == 0
        safe = jnp.where(empty, 1.0, weight)
        # where, not only weights of 0: a value that other rows see may be NaN.
        rest = jnp.where(empty, LOW, jnp.log(safe))
        return jnp.where(empty[..., None], 0.0, total / safe[..., None]), jnp.stack([top, rest], -1)

    output, log_weight = jax.lax.map(visit_row, numbered(plan, key, varying))
    return join(output, query, key), join(log_weight, query, key)


def backward(
    plan: Plan,
    query: Array,
    key: Array,
    value: Array,
    bias: Any,
    varying: Varying,
    output: Float[Array, "B T N J"],
    log_weight: Float[Array, "B T N 2"],
    upstream: Float[Array, "B T N J"],
) -> tuple[Array, Array, Array, Any]:
    """Gradients of query, key, value and bias, as sums in float32: each block's weights again, from the log-sum-exp.

    `output` and `log_weight` are those of the whole rows, of which these keys may be a piece.
    """
    padded = _pad_bias(plan, bias)
    # The sum over keys of weight times its gradient, which the softmax subtracts.
    level = (upstream.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1)
    of_rows = query, upstream, log_weight[..., :1], log_weight[..., 1:], level[..., None]

    def visit_row(sums: tuple[Any, ...], given: tuple[Array, Array]) -> tuple[tuple[Any, ...], Array]:
        number, (first, last) = given
        spot = spot_of(plan, key, varying, number)
        query_block, upstream_block, top, rest, level_block = (queries_at(plan, x, key, spot) for x in of_rows)
        filled = rest > 0.5 * LOW
        # What an empty row holds, and what came from above for it, may be NaN.
        query_block, upstream_block = (jnp.where(filled, x, 0) for x in (query_block, upstream_block))

        def visit(j: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            d_query, d_key, d_value, d_bias = carry
            tile = tile_at(plan, varying, query_block, key, value, spot, j)
            scaled = _products(query_block, tile.key) * plan.scale
            logits = jnp.where(tile.allowed, _logits(plan, tile, query_block, padded, spot, j), LOW)
            weights = jnp.where(tile.allowed, jnp.exp(logits - top - rest), 0.0)
            mixing, d_mixing = weights, _products(upstream_block, tile.value)
            if tile.kept is not None:
                mixing, d_mixing = (jnp.where(tile.kept, x * (1 / (1 - plan.rate)), 0.0) for x in (weights, d_mixing))
            d_logits = jnp.where(tile.allowed, weights * (d_mixing - level_block), 0.0)
            d_scaled = d_logits if plan.score is None else jax.vjp(plan.score, scaled)[1](d_logits)[0]
            narrow = (d_scaled * plan.scale).astype(query.dtype)
            d_query += _mix(narrow, tile.key)
            d_key = _add(plan, d_key, _gather(narrow, query_block), spot, j)
            d_value = _add(plan, d_value, _gather(mixing.astype(value.dtype), upstream_block), spot, j)
            if plan.tree is not None:
                d_bias, by_bias = _through_bias(plan, bias, d_bias, tile, query_block, d_logits)
                d_query += by_bias
            elif d_bias is not None:
                d_bias = _add_bias(plan, d_bias, d_logits, spot, j)
            return d_query, d_key, d_value, d_bias

        d_query, *others = jax.lax.fori_loop(first, last, visit, (jnp.zeros(query_block.shape, jnp.float32), *sums))
        return tuple(others), d_query

    zeros = lambda x: jnp.zeros((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), jnp.float32)
    sums = zeros(key), zeros(value), no_slopes(padded)
    (d_key, d_value, d_bias), d_query = jax.lax.scan(visit_row, sums, numbered(plan, key, varying))
    if plan.tree is None and d_bias is not None:
        d_bias = d_bias[:, :, : bias.shape[2], : bias.shape[3]]
    return join(d_query, query, key), d_key.swapaxes(1, 2), d_value.swapaxes(1, 2), d_bias


def no_slopes(bias: Any) -> Any:
    """Sums in float32 for the gradients of a bias, an array or the leaves of one; None for whole numbers."""
    zeros = lambda x: jnp.zeros(x.shape, jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else None
    return jax.tree.map(zeros, bias)


def slopes(bias: Any, sums: Any) -> Any:
    """The gradients of a bias from such sums: in its dtypes, and of whole numbers float0."""
    one = lambda x, d: np.zeros(x.shape, jax.dtypes.float0) if d is None else d.astype(x.dtype)
    return jax.tree.map(one, bias, sums)


def _add(plan: Plan, x: Array, block: Array, spot: Spot, j: Array) -> Array:
    """The gradient of all keys or values, ``[B, K, S, X]``, with that of a block more, ``[b, k, s, X]``."""
    start = spot.row, spot.head, j * plan.blocks[1], 0
    return jax.lax.dynamic_update_slice(x, jax.lax.dynamic_slice(x, start, block.shape) + block, start)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, query: Array, key: Array, value: Array, bias: Any, varying: Varying) -> Array:
    return forward(plan, query, key, value, bias, varying)[0].astype(query.dtype)


def _attend_forward(plan, query, key, value, bias, varying):
    output, log_weight = forward(plan, query, key, value, bias, varying)
    output = output.astype(query.dtype)
    return output, (query, key, value, bias, varying, output, log_weight)


def _attend_backward(plan, saved, upstream):
    query, key, value, bias, *_ = saved
    *d_arrays, d_bias = backward(plan, *saved, upstream)
    narrow = (d.astype(x.dtype) for d, x in zip(d_arrays, (query, key, value), strict=True))
    return *narrow, slopes(bias, d_bias), None


_attend.defvjp(_attend_forward, _attend_backward)


def _logits(plan: Plan, tile: Tile, query: Array, bias: Any, spot: Spot, j: Array) -> Array:
    """The logits of a block, float32 ``[B, K, G, t, s]``."""
    logits = _products(query, tile.key) * plan.scale
    logits = logits if plan.score is None else plan.score(logits)
    if bias is None:
        return logits
    found = _bias_block(plan, bias, query, spot, j) if plan.tree is None else _bias_tile(plan, bias, query, tile)
    return logits + spread(found, query.shape[1]).astype(jnp.float32)


def _products(query: Array, key: Array) -> Array:
    """``[B, K, G, t, H]`` by ``[B, K, s, H]``: float32 ``[B, K, G, t, s]``."""
    return _pair("bkxh,bksh->bkxs", query, key).reshape(*query.shape[:4], key.shape[2])


def _mix(weights: Array, value: Array) -> Array:
    """``[B, K, G, t, s]`` by ``[B, K, s, J]``: float32 ``[B, K, G, t, J]``."""
    return _pair("bkxs,bksj->bkxj", weights, value).reshape(*weights.shape[:4], value.shape[3])


def _gather(weights: Array, given: Array) -> Array:
    """``[B, K, G, t, s]`` by ``[B, K, G, t, H]``: float32 ``[B, K, s, H]``, summed over the heads of a group."""
    return _pair("bkxs,bkxh->bksh", weights, given)


def _pair(letters: str, *arrays: Array) -> Array:
    """A matrix product a key head; the queries of all heads that share it are the rows x of one matrix."""
    flat = (x.reshape(*x.shape[:2], -1, x.shape[4]) if x.ndim == 5 else x for x in arrays)
    return jnp.einsum(letters, *flat, preferred_element_type=jnp.float32)


def _bias_tile(plan: Plan, leaves: Sequence[Array], query: Array, tile: Tile) -> Array:
    """What the `Bias` of these leaves adds in a block, ``[b, n, t, s]``."""
    heads = query.reshape(query.shape[0], -1, *query.shape[3:])
    bias: Bias = jax.tree.unflatten(plan.tree, leaves)
    return here(bias.tile(heads.astype(jnp.float32) * plan.scale, *tile.places), tile.origin, heads.shape[:2])


def _through_bias(plan: Plan, leaves, d_leaves, tile: Tile, query: Array, d_logits: Array):
    """The gradients of a bias's leaves with one block more, and that of the block's queries through it."""

    def added(learned: tuple[Array | None, ...], query: Array) -> Array:
        given = [old if new is None else new.astype(old.dtype) for old, new in zip(leaves, learned, strict=True)]
        found = _bias_tile(plan, given, query, tile).astype(jnp.float32)
        return jnp.broadcast_to(spread(found, query.shape[1]), d_logits.shape)

    learned = tuple(None if d is None else x.astype(jnp.float32) for x, d in zip(leaves, d_leaves, strict=True))
    _, pull = jax.vjp(added, learned, query)
    one, by_query = pull(d_logits)
    return jax.tree.map(jnp.add, d_leaves, one), by_query.astype(jnp.float32)


def _pad_bias(plan: Plan, bias: Any) -> Any:
    """An array filled up to whole blocks where it has them: a slice beyond the end would be moved, not cut."""
    if bias is None or plan.tree is not None:
        return bias
    short = [-length % block for length, block in zip(plan.dims[2:], plan.blocks, strict=True)]
    extra = [missing if size > 1 else 0 for missing, size in zip(short, bias.shape[2:], strict=True)]
    return jnp.pad(bias, ((0, 0), (0, 0), (0, extra[0]), (0, extra[1])))


def _bias_start(plan: Plan, bias: Array, shape: tuple[int, ...], spot: Spot, j: Array) -> tuple[tuple, tuple]:
    """Where a tile of queries ``[B, K, G, t]`` is in an array of biases, and its size there."""
    group = shape[2]
    sizes = shape[0], shape[1] * group, *plan.blocks
    starts = spot.row, spot.head * group, spot.block * plan.blocks[0], j * plan.blocks[1]
    broad = [size == 1 for size in bias.shape]
    return tuple(0 if b else x for b, x in zip(broad, starts, strict=True)), tuple(
        1 if b else x for b, x in zip(broad, sizes, strict=True)
    )


def _bias_block(plan: Plan, bias: Array, query: Array, spot: Spot, j: Array) -> Array:
    return jax.lax.dynamic_slice(bias, *_bias_start(plan, bias, query.shape, spot, j))


def _add_bias(plan: Plan, d_bias: Array, d_logits: Array, spot: Spot, j: Array) -> Array:
    """The bias's gradient with one tile more: summed over the dimensions in which the bias is broadcast."""
    whole = d_logits.reshape(d_logits.shape[0], -1, *d_logits.shape[3:])
    start, size = _bias_start(plan, d_bias, d_logits.shape, spot, j)
    narrow = tuple(dim for dim in range(4) if size[dim] == 1 and whole.shape[dim] != 1)
    block = whole.sum(narrow, keepdims=True)
    return jax.lax.dynamic_update_slice(d_bias, jax.lax.dynamic_slice(d_bias, start, size) + block, start)
