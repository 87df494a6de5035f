"""Attention block by block, with an online softmax: the weights never exist as a whole.

Memory is O(T + S) forward and backward, for any mask, bias and dropout: a tile of the mask is asked for when it is
needed, a tile of dropout is hashed again.  Blocks that `Mask.key_range` rules out are not visited, so restricted
attention, ``mask=window(W)``, costs O(T W).  The loops run over blocks and are never unrolled: compile time does not
grow with length.

`forward` and `backward` may be given a piece of the keys, which is how ring attention uses them.

Milakov and Gimelshein 2018 (online softmax); Rabe and Staats 2021; Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer.functional.attention.base import Request, Score, keep_tile
from jaxformer.functional.bias import Bias
from jaxformer.functional.dropout import Dropout
from jaxformer.masks import Mask

QUERY_BLOCK, KEY_BLOCK = 256, 256
"""Tiles of this size, for a handful of heads, stay in a core's cache."""

LOW = float(np.finfo(np.float32).min)
"""The logit of a forbidden pair, and the log-sum-exp of a query that sees nothing."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static."""

    dims: tuple[int, int, int, int]  # B, N, T, S: positions from T and S on do not exist
    blocks: tuple[int, int]
    scale: float
    score: Score | None
    rate: float
    tree: Any  # how the leaves of a `Bias` make one; None for an array, or for no bias
    whole: bool  # every block is full: no position needs to be compared with T and S


class Varying(NamedTuple):
    """What may differ between calls of one program, and is not differentiated."""

    bounds: Array  # int32 [blocks of queries, 2]: the first and one past the last block of keys to visit
    mask: Mask | None
    dropout_key: Array | None = None
    places: tuple[Array, Array] | None = None
    """The positions of the queries and of the keys, consecutive in each block; None where they are 0, 1, 2, ..."""


def attention(
    request: Request, *, query_block: int = QUERY_BLOCK, key_block: int = KEY_BLOCK
) -> Float[Array, "B T N J"]:
    """The same result as `reference.attention`, in blocks of these sizes."""
    num_queries, num_keys = request.query.shape[1], request.key.shape[1]
    if num_queries == 0 or num_keys == 0:
        return jnp.zeros((*request.query.shape[:3], request.value.shape[3]), request.query.dtype)
    query_block, key_block = min(query_block, num_queries), min(key_block, num_keys)
    rows, columns = -num_queries % query_block, -num_keys % key_block
    plan = make_plan(request, (query_block, key_block), whole=not rows and not columns)
    ranges = key_ranges(request.mask, num_queries, query_block)
    bounds = key_bounds(ranges, np.arange(0, num_keys, key_block), key_block)
    varying = Varying(jnp.asarray(bounds), request.mask, None if request.dropout is None else request.dropout.key)
    query, key, value = by_head(request)
    query = jnp.pad(query, ((0, 0), (0, 0), (0, 0), (0, rows), (0, 0)))
    key, value = (jnp.pad(x, ((0, 0), (0, 0), (0, columns), (0, 0))) for x in (key, value))
    bias = tuple(jax.tree.leaves(request.bias)) if isinstance(request.bias, Bias) else request.bias
    return by_position(_attend(plan, query, key, value, bias, varying)[:, :, :, :num_queries])


def make_plan(request: Request, blocks: tuple[int, int], *, whole: bool) -> Plan:
    """The plan of a request."""
    batch, num_queries, num_heads, _ = request.query.shape
    rate = 0.0 if request.dropout is None else request.dropout.rate
    tree = jax.tree.structure(request.bias) if isinstance(request.bias, Bias) else None
    dims = (batch, num_heads, num_queries, request.key.shape[1])
    return Plan(dims, blocks, request.scale, request.score, rate, tree, whole)


def by_head(request: Request) -> tuple[Array, Array, Array]:
    """Queries ``[B, K, G, T, H]``, keys and values ``[B, K, S, H]``: what a block multiplies lies together."""
    query = request.query.reshape(*request.query.shape[:2], -1, request.group, request.query.shape[3])
    return query.transpose(0, 2, 3, 1, 4), request.key.transpose(0, 2, 1, 3), request.value.transpose(0, 2, 1, 3)


def by_position(output: Float[Array, "B K G T J"]) -> Float[Array, "B T N J"]:
    """The way back."""
    moved = output.transpose(0, 3, 1, 2, 4)
    return moved.reshape(*moved.shape[:2], -1, moved.shape[4])


def key_ranges(mask: Mask | None, num_queries: int, query_block: int) -> np.ndarray:
    """For each block of queries, the keys outside of which it sees none: ``[blocks, 2]``, from and up to."""
    starts = range(0, num_queries, query_block)
    if mask is None:
        return np.array([(0, np.iinfo(np.int32).max) for _ in starts], np.int32)
    found = [mask.key_range(start, min(start + query_block, num_queries)) for start in starts]
    return np.clip(found, 0, np.iinfo(np.int32).max).astype(np.int32)


def key_bounds(ranges: Any, starts: Any, key_block: int) -> Any:
    """From key ranges ``[queries, 2]`` to the first and one past the last of the key blocks that begin at `starts`."""
    numbers = jnp if isinstance(ranges, jax.Array) or isinstance(starts, jax.Array) else np
    needed = (
        (starts[None] < ranges[:, 1:]) & (starts[None] + key_block > ranges[:, :1]) & (ranges[:, 1:] > ranges[:, :1])
    )
    last = needed.shape[1] - needed[:, ::-1].argmax(1)
    return numbers.stack([needed.argmax(1), numbers.where(needed.any(1), last, 0)], 1).astype(np.int32)


def forward(
    plan: Plan, query: Array, key: Array, value: Array, bias: Any, varying: Varying
) -> tuple[Float[Array, "B K G T J"], Float[Array, "B K G T"]]:
    """Output and log-sum-exp of every row, both float32; 0 and `LOW` in an empty row."""
    bias = _pad_bias(plan, bias)

    def visit_row(given: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        i, (first, last), query_block = given
        shape = query_block.shape[:-1]

        def visit(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            total, top, weight = carry
            tile = _tile(plan, varying, key, value, i, j)
            logits = jnp.where(tile.allowed, _logits(plan, tile, query_block, bias, i, j), LOW)
            higher = jnp.maximum(top, logits.max(-1))
            shrink = jnp.exp(top - higher)
            weights = jnp.where(tile.allowed, jnp.exp(logits - higher[..., None]), 0.0)
            weight = weight * shrink + weights.sum(-1)
            if tile.kept is not None:
                weights = jnp.where(tile.kept, weights * (1 / (1 - plan.rate)), 0.0)
            return total * shrink[..., None] + _mix(weights.astype(value.dtype), tile.value), higher, weight

        nothing = (jnp.zeros((*shape, value.shape[-1])), jnp.full(shape, LOW), jnp.zeros(shape))
        total, top, weight = jax.lax.fori_loop(first, last, visit, nothing)
        empty = weight == 0
        safe = jnp.where(empty, 1.0, weight)
        # where, not only weights of 0: a value that other rows see may be NaN.
        return jnp.where(empty[..., None], 0.0, total / safe[..., None]), top + jnp.log(safe)

    blocks = jnp.arange(varying.bounds.shape[0])
    output, log_weight = jax.lax.map(visit_row, (blocks, varying.bounds, _split(plan, query)))
    return _join(output), _join(log_weight[..., None])[..., 0]


def backward(
    plan: Plan,
    query: Array,
    key: Array,
    value: Array,
    bias: Any,
    varying: Varying,
    output: Float[Array, "B K G T J"],
    log_weight: Float[Array, "B K G T"],
    upstream: Float[Array, "B K G T J"],
) -> tuple[Array, Array, Array, Any]:
    """Gradients of query, key, value (float32) and bias: each block's weights again, from the log-sum-exp.

    `output` and `log_weight` are those of the whole rows, of which these keys may be a piece.
    """
    padded, key_block = _pad_bias(plan, bias), plan.blocks[1]
    # The sum over keys of weight times its gradient, which the softmax subtracts.
    level = (upstream.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1, keepdims=True)

    def add(x: Array, block: Array, j: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(x, _slice(x, j, key_block) + block, j * key_block, axis=x.ndim - 2)

    def visit_row(sums: tuple[Any, ...], given: tuple[Array, ...]) -> tuple[tuple[Any, ...], Array]:
        i, (first, last), query_block, upstream_block, log_block, level_block = given
        filled = log_block > 0.5 * LOW
        # What an empty row holds, and what came from above for it, may be NaN.
        query_block, upstream_block = (jnp.where(filled, x, 0) for x in (query_block, upstream_block))

        def visit(j: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            d_query, d_key, d_value, d_bias = carry
            tile = _tile(plan, varying, key, value, i, j)
            scaled = _products(query_block, tile.key) * plan.scale
            logits = jnp.where(tile.allowed, _logits(plan, tile, query_block, padded, i, j), LOW)
            weights = jnp.where(tile.allowed, jnp.exp(logits - log_block), 0.0)
            mixing, d_mixing = weights, _products(upstream_block, tile.value)
            if tile.kept is not None:
                mixing, d_mixing = (jnp.where(tile.kept, x * (1 / (1 - plan.rate)), 0.0) for x in (weights, d_mixing))
            d_logits = jnp.where(tile.allowed, weights * (d_mixing - level_block), 0.0)
            d_scaled = d_logits if plan.score is None else jax.vjp(plan.score, scaled)[1](d_logits)[0]
            narrow = (d_scaled * plan.scale).astype(query.dtype)
            d_query += _mix(narrow, tile.key)
            one_key, one_value = _gather(narrow, query_block), _gather(mixing.astype(value.dtype), upstream_block)
            if plan.tree is not None:
                d_bias, by_bias = _through_bias(plan, bias, d_bias, tile, query_block, d_logits)
                d_query += by_bias
            elif d_bias is not None:
                d_bias = _add_bias(plan, d_bias, d_logits, i, j)
            return d_query, add(d_key, one_key, j), add(d_value, one_value, j), d_bias

        d_query, *rest = jax.lax.fori_loop(first, last, visit, (jnp.zeros(query_block.shape), *sums))
        return tuple(rest), d_query

    d_bias = [jnp.zeros(x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else None for x in jax.tree.leaves(padded)]
    d_bias = d_bias if plan.tree is not None else d_bias[0] if d_bias else None
    rows = [_split(plan, x) for x in (query, upstream, log_weight[..., None], level)]
    given = (jnp.arange(varying.bounds.shape[0]), varying.bounds, *rows)
    sums = (jnp.zeros(key.shape), jnp.zeros(value.shape), d_bias)
    (d_key, d_value, d_bias), d_query = jax.lax.scan(visit_row, sums, given)
    if plan.tree is not None:  # whole numbers have no gradient, and float0 says so
        none = lambda x: np.zeros(x.shape, jax.dtypes.float0)
        d_bias = tuple(none(x) if d is None else d.astype(x.dtype) for x, d in zip(bias, d_bias, strict=True))
    elif bias is not None and d_bias is not None:
        d_bias = d_bias[:, :, : bias.shape[2], : bias.shape[3]].astype(bias.dtype)
    return _join(d_query), d_key, d_value, d_bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, query: Array, key: Array, value: Array, bias: Any, varying: Varying) -> Array:
    return forward(plan, query, key, value, bias, varying)[0].astype(query.dtype)


def _attend_forward(plan, query, key, value, bias, varying):
    output, log_weight = forward(plan, query, key, value, bias, varying)
    output = output.astype(query.dtype)
    return output, (query, key, value, bias, varying, output, log_weight)


def _attend_backward(plan, saved, upstream):
    query, key, value, *_ = saved
    *d_arrays, d_bias = backward(plan, *saved, upstream)
    return *(d.astype(x.dtype) for d, x in zip(d_arrays, (query, key, value), strict=True)), d_bias, None


_attend.defvjp(_attend_forward, _attend_backward)


class _Tile(NamedTuple):
    """What is known of block (i, j) before its products."""

    places: tuple[Array, Array]  # positions of its queries and keys; beyond the ends, the last ones again
    allowed: Array  # Bool [b, k, g, t, s]
    kept: Array | None  # what dropout keeps, likewise
    key: Array  # [B, K, s, H]; 0 where none of the block's queries look
    value: Array


def _tile(plan: Plan, varying: Varying, key: Array, value: Array, i: Array, j: Array) -> _Tile:
    (_, _, num_queries, num_keys), (query_block, key_block) = plan.dims, plan.blocks
    if varying.places is None:
        places = i * query_block + jnp.arange(query_block), j * key_block + jnp.arange(key_block)
    else:
        starts = (i * query_block, query_block), (j * key_block, key_block)
        places = tuple(jax.lax.dynamic_slice_in_dim(x, *y) for x, y in zip(varying.places, starts, strict=True))
    allowed = jnp.ones((1, 1, 1, 1), bool)
    if not plan.whole:
        allowed = ((places[0] < num_queries)[:, None] & (places[1] < num_keys)[None])[None, None]
        places = jnp.minimum(places[0], num_queries - 1), jnp.minimum(places[1], num_keys - 1)
    if varying.mask is not None:
        allowed = allowed & varying.mask.tile(*places)
    allowed, kept = _spread(allowed, key.shape[1]), None
    if varying.dropout_key is not None:
        indices = jnp.ix_(jnp.arange(plan.dims[0]), jnp.arange(plan.dims[1]), *places)
        kept = _spread(keep_tile(Dropout(plan.rate, varying.dropout_key), plan.dims, indices), key.shape[1])
    key, value = (_slice(x, j, key_block) for x in (key, value))
    if varying.mask is not None:  # what no query looks at may be NaN, and 0 times NaN is NaN
        seen = allowed.any((2, 3))[..., None]
        key, value = jnp.where(seen, key, 0), jnp.where(seen, value, 0)
    return _Tile(places, allowed, kept, key, value)


def _logits(plan: Plan, tile: _Tile, query: Array, bias: Any, i: Array, j: Array) -> Array:
    """The logits of a block, float32 ``[B, K, G, t, s]``."""
    logits = _products(query, tile.key) * plan.scale
    logits = logits if plan.score is None else plan.score(logits)
    if bias is None:
        return logits
    found = _bias_block(plan, bias, i, j) if plan.tree is None else _bias_tile(plan, bias, query, tile)
    return logits + _spread(found, query.shape[1]).astype(jnp.float32)


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


def _bias_tile(plan: Plan, leaves: Sequence[Array], query: Array, tile: _Tile) -> Array:
    """What the `Bias` of these leaves adds in a block, ``[b, n, t, s]``."""
    heads = query.reshape(query.shape[0], -1, *query.shape[3:])
    bias: Bias = jax.tree.unflatten(plan.tree, leaves)
    return bias.tile(heads.astype(jnp.float32) * plan.scale, *tile.places)


def _through_bias(plan: Plan, leaves, d_leaves, tile: _Tile, query: Array, d_logits: Array):
    """The gradients of a bias's leaves with one block more, and that of the block's queries through it."""

    def added(learned: list[Array | None], query: Array) -> Array:
        given = [old if new is None else new.astype(old.dtype) for old, new in zip(leaves, learned, strict=True)]
        found = _bias_tile(plan, given, query, tile).astype(jnp.float32)
        return jnp.broadcast_to(_spread(found, query.shape[1]), d_logits.shape)

    learned = [None if d is None else x.astype(jnp.float32) for x, d in zip(leaves, d_leaves, strict=True)]
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


def _bias_start(plan: Plan, bias: Array, i: Array, j: Array) -> tuple[tuple[Array | int, ...], tuple[int, ...]]:
    rows, columns = (size if bias.shape[dim] > 1 else 1 for dim, size in ((2, plan.blocks[0]), (3, plan.blocks[1])))
    start = (0, 0, i * plan.blocks[0] if rows > 1 else 0, j * plan.blocks[1] if columns > 1 else 0)
    return start, (*bias.shape[:2], rows, columns)


def _bias_block(plan: Plan, bias: Array, i: Array, j: Array) -> Array:
    start, size = _bias_start(plan, bias, i, j)
    return jax.lax.dynamic_slice(bias, start, size)


def _add_bias(plan: Plan, d_bias: Array, d_logits: Array, i: Array, j: Array) -> Array:
    """The bias's gradient with one block more: summed over the dimensions in which the bias is broadcast."""
    whole = d_logits.reshape(d_logits.shape[0], -1, *d_logits.shape[3:])
    start, size = _bias_start(plan, d_bias, i, j)
    narrow = tuple(dim for dim in range(4) if size[dim] == 1 and whole.shape[dim] != 1)
    block = whole.sum(narrow, keepdims=True)
    return jax.lax.dynamic_update_slice(d_bias, jax.lax.dynamic_slice(d_bias, start, size) + block, start)


def _spread(x: Array, num_key_heads: int) -> Array:
    """``[b, n, ...]`` to ``[b, K or 1, G or 1, ...]``."""
    heads = (1, 1) if x.shape[1] == 1 else (num_key_heads, x.shape[1] // num_key_heads)
    return x.reshape(x.shape[0], *heads, *x.shape[2:])


def _slice(x: Array, j: Array, size: int) -> Array:
    """Block j of the second dimension from the end."""
    return jax.lax.dynamic_slice_in_dim(x, j * size, size, axis=x.ndim - 2)


def _split(plan: Plan, x: Float[Array, "B K G T X"]) -> Float[Array, "blocks B K G t X"]:
    return jnp.moveaxis(x.reshape(*x.shape[:3], -1, plan.blocks[0], x.shape[4]), 3, 0)


def _join(x: Float[Array, "blocks B K G t X"]) -> Float[Array, "B K G T X"]:
    moved = jnp.moveaxis(x, 0, 3)
    return moved.reshape(*moved.shape[:3], -1, moved.shape[-1])
