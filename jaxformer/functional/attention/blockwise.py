"""Attention block by block, with an online softmax: the weights never exist as a whole.

Memory is O(T + S) forward and backward, for any mask, bias and dropout: a tile of the mask is asked for when it is
needed, a tile of dropout is hashed again.  Blocks that `Mask.key_range` rules out are not visited, so restricted
attention, ``mask=window(W)``, costs O(T W).  The loops run over blocks and are never unrolled: compile time does not
grow with length.

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

_LOW = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What is static: sizes, and for each block of queries the first and one past the last block of keys."""

    dims: tuple[int, int, int, int]  # B, N, T, S
    blocks: tuple[int, int]
    scale: float
    score: Score | None
    rate: float
    first: tuple[int, ...]
    last: tuple[int, ...]
    tree: Any  # how the leaves of a `Bias` make one; None for an array, or for no bias

    @property
    def padded(self) -> tuple[int, int]:
        """T and S, filled up to whole blocks."""
        return self.blocks[0] * len(self.first), self.blocks[1] * -(-self.dims[3] // self.blocks[1])


class _Extras(NamedTuple):
    """What varies but is not differentiated here: the mask and dropout's key."""

    mask: Mask | None
    key: Array | None


def attention(
    request: Request, *, query_block: int = QUERY_BLOCK, key_block: int = KEY_BLOCK
) -> Float[Array, "B T N J"]:
    """The same result as `reference.attention`, in blocks of these sizes."""
    batch, num_queries, num_heads, head_dim = request.query.shape
    num_keys, num_key_heads = request.key.shape[1:3]
    value_dim = request.value.shape[3]
    if num_queries == 0 or num_keys == 0:
        return jnp.zeros((batch, num_queries, num_heads, value_dim), request.query.dtype)
    plan = _make_plan(request, min(query_block, num_queries), min(key_block, num_keys))
    extras = _Extras(request.mask, None if request.dropout is None else request.dropout.key)
    # [B, K, G, T, H] and [B, K, S, H]: what a block multiplies lies together.
    query = request.query.reshape(batch, num_queries, num_key_heads, request.group, head_dim).transpose(0, 2, 3, 1, 4)
    key, value = request.key.transpose(0, 2, 1, 3), request.value.transpose(0, 2, 1, 3)
    if request.mask is not None:
        filled, seen = _reach(plan, request.mask)
        query = jnp.where(_by_head(filled, num_key_heads)[..., None], query, 0)
        seen = _by_head(seen, num_key_heads).any(2)[..., None]
        key, value = jnp.where(seen, key, 0), jnp.where(seen, value, 0)
    rows, columns = plan.padded[0] - num_queries, plan.padded[1] - num_keys
    query = jnp.pad(query, ((0, 0), (0, 0), (0, 0), (0, rows), (0, 0)))
    key, value = (jnp.pad(x, ((0, 0), (0, 0), (0, columns), (0, 0))) for x in (key, value))
    bias = tuple(jax.tree.leaves(request.bias)) if isinstance(request.bias, Bias) else request.bias
    output = _attend(plan, query, key, value, bias, extras)[:, :, :, :num_queries]
    if request.mask is not None:
        output = jnp.where(_by_head(filled, num_key_heads)[..., None], output, 0)
    return output.transpose(0, 3, 1, 2, 4).reshape(batch, num_queries, num_heads, value_dim)


def _make_plan(request: Request, query_block: int, key_block: int) -> _Plan:
    batch, num_queries, num_heads, _ = request.query.shape
    num_keys = request.key.shape[1]
    first, last = [], []
    for start in range(0, num_queries, query_block):
        low, high = 0, num_keys
        if request.mask is not None:
            low, high = request.mask.key_range(start, min(start + query_block, num_queries))
        low, high = max(low, 0), min(max(high, 0), num_keys)
        first.append(min(low, num_keys) // key_block)
        last.append(-(-high // key_block) if high > low else first[-1])
    rate = 0.0 if request.dropout is None else request.dropout.rate
    tree = jax.tree.structure(request.bias) if isinstance(request.bias, Bias) else None
    dims = (batch, num_heads, num_queries, num_keys)
    return _Plan(dims, (query_block, key_block), request.scale, request.score, rate, tuple(first), tuple(last), tree)


def _by_head(x: Array, num_key_heads: int) -> Array:
    """``[b, n, ...]`` to ``[b, K or 1, G or 1, ...]``."""
    heads = (1, 1) if x.shape[1] == 1 else (num_key_heads, x.shape[1] // num_key_heads)
    return x.reshape(x.shape[0], *heads, *x.shape[2:])


def _reach(plan: _Plan, mask: Mask) -> tuple[Array, Array]:
    """Which queries see a key, ``Bool [b, n, T]``, and which keys are seen by a query, ``Bool [b, n, S]``."""
    (query_block, key_block), (_, _, num_queries, num_keys) = plan.blocks, plan.dims
    tile = functools.partial(_mask_tile, plan, mask)
    shape = jax.eval_shape(tile, jnp.int32(0), jnp.int32(0)).shape[:2]

    def rows(seen: Array, given: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        i, first, last = given

        def visit(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            seen, filled = carry
            allowed = tile(i, j)
            start, old = j * key_block, _slice(seen[..., None], j, key_block)[..., 0]
            return jax.lax.dynamic_update_slice_in_dim(seen, old | allowed.any(2), start, 2), filled | allowed.any(3)

        return jax.lax.fori_loop(first, last, visit, (seen, jnp.zeros((*shape, query_block), bool)))

    given = (jnp.arange(len(plan.first)), jnp.asarray(plan.first), jnp.asarray(plan.last))
    seen, filled = jax.lax.scan(rows, jnp.zeros((*shape, plan.padded[1]), bool), given)
    return jnp.moveaxis(filled, 0, 2).reshape(*shape, -1)[..., :num_queries], seen[..., :num_keys]


def _positions(plan: _Plan, i: Array, j: Array) -> tuple[Array, Array]:
    """The positions of a block's queries and keys; beyond the ends, the last ones again."""
    query_index, key_index = (n * size + jnp.arange(size) for n, size in zip((i, j), plan.blocks, strict=True))
    return jnp.minimum(query_index, plan.dims[2] - 1), jnp.minimum(key_index, plan.dims[3] - 1)


def _mask_tile(plan: _Plan, mask: Mask | None, i: Array, j: Array) -> Array:
    """Where block (i, j) attends, ``Bool [b, n, t, s]``: False beyond the ends."""
    (query_block, key_block), (_, _, num_queries, num_keys) = plan.blocks, plan.dims
    query_index, key_index = i * query_block + jnp.arange(query_block), j * key_block + jnp.arange(key_block)
    inside = ((query_index < num_queries)[:, None] & (key_index < num_keys)[None])[None, None]
    return inside if mask is None else inside & mask.tile(*_positions(plan, i, j))


def _tile(plan: _Plan, extras: _Extras, num_key_heads: int, i: Array, j: Array) -> tuple[Array, Array | None]:
    """Where block (i, j) attends, and what dropout keeps of it; ``Bool [b, k, g, t, s]``."""
    allowed = _by_head(_mask_tile(plan, extras.mask, i, j), num_key_heads)
    if extras.key is None:
        return allowed, None
    batch, num_heads, _, _ = plan.dims
    indices = (
        jnp.arange(batch).reshape(-1, 1, 1, 1),
        jnp.arange(num_heads).reshape(1, -1, 1, 1),
        (i * plan.blocks[0] + jnp.arange(plan.blocks[0])).reshape(1, 1, -1, 1),
        (j * plan.blocks[1] + jnp.arange(plan.blocks[1])).reshape(1, 1, 1, -1),
    )
    kept = keep_tile(Dropout(plan.rate, extras.key), plan.dims, indices)
    return allowed, _by_head(kept, num_key_heads)


def _logits(plan: _Plan, query: Array, key: Array, bias: Any, i: Array, j: Array) -> Array:
    """The logits of a block, float32 ``[B, K, G, t, s]``."""
    logits = jnp.einsum("bkgth,bksh->bkgts", query, key, preferred_element_type=jnp.float32) * plan.scale
    logits = logits if plan.score is None else plan.score(logits)
    if bias is None:
        return logits
    tile = _bias_block(plan, bias, i, j) if plan.tree is None else _bias_tile(plan, bias, query, i, j)
    return logits + _by_head(tile, key.shape[1]).astype(jnp.float32)


def _bias_tile(plan: _Plan, leaves: Sequence[Array], query: Array, i: Array, j: Array) -> Array:
    """What the `Bias` of these leaves adds in a block, ``[b, n, t, s]``."""
    heads = query.reshape(query.shape[0], -1, *query.shape[3:])
    bias: Bias = jax.tree.unflatten(plan.tree, leaves)
    return bias.tile(heads.astype(jnp.float32) * plan.scale, *_positions(plan, i, j))


def _bias_start(plan: _Plan, bias: Array, i: Array, j: Array) -> tuple[tuple[Array | int, ...], tuple[int, ...]]:
    rows, columns = (size if bias.shape[dim] > 1 else 1 for dim, size in ((2, plan.blocks[0]), (3, plan.blocks[1])))
    start = (0, 0, i * plan.blocks[0] if rows > 1 else 0, j * plan.blocks[1] if columns > 1 else 0)
    return start, (*bias.shape[:2], rows, columns)


def _bias_block(plan: _Plan, bias: Array, i: Array, j: Array) -> Array:
    start, size = _bias_start(plan, bias, i, j)
    return jax.lax.dynamic_slice(bias, start, size)


def _slice(x: Array, j: Array, size: int) -> Array:
    """Block j of the second dimension from the end."""
    return jax.lax.dynamic_slice_in_dim(x, j * size, size, axis=x.ndim - 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: _Plan, query: Array, key: Array, value: Array, bias: Any, extras: _Extras) -> Array:
    return _forward(plan, query, key, value, bias, extras)[0]


def _forward(plan, query, key, value, bias, extras):
    """Output ``[B, K, G, T, J]`` and the log-sum-exp of every row, ``float32 [B, K, G, T]``."""
    bias = _pad_bias(plan, bias)
    key_block = plan.blocks[1]

    def rows(i, query_block, first, last):
        shape = query_block.shape[:-1]

        def visit(j, carry):
            total, top, weight = carry
            allowed, kept = _tile(plan, extras, key.shape[1], i, j)
            logits = _logits(plan, query_block, _slice(key, j, key_block), bias, i, j)
            logits = jnp.where(allowed, logits, _LOW)
            higher = jnp.maximum(top, logits.max(-1))
            shrink = jnp.exp(top - higher)
            weights = jnp.where(allowed, jnp.exp(logits - higher[..., None]), 0.0)
            weight = weight * shrink + weights.sum(-1)
            if kept is not None:
                weights = jnp.where(kept, weights * (1 / (1 - plan.rate)), 0.0)
            block = _slice(value, j, key_block)
            mixed = jnp.einsum(
                "bkgts,bksj->bkgtj", weights.astype(value.dtype), block, preferred_element_type=jnp.float32
            )
            return total * shrink[..., None] + mixed, higher, weight

        nothing = (jnp.zeros((*shape, value.shape[-1])), jnp.full(shape, _LOW), jnp.zeros(shape))
        total, top, weight = jax.lax.fori_loop(first, last, visit, nothing)
        safe = jnp.where(weight == 0, 1.0, weight)
        return (total / safe[..., None]).astype(query.dtype), top + jnp.log(safe)

    output, log_weight = _over_rows(plan, rows, query)
    return _join(output), _join(log_weight[..., None])[..., 0]


def _over_rows(plan: _Plan, rows, *blocked: Array):
    """Calls ``rows(i, *blocks, first, last)`` for each block of queries, one after another."""
    split = [jnp.moveaxis(x.reshape(*x.shape[:3], len(plan.first), -1, x.shape[-1]), 3, 0) for x in blocked]
    bounds = jnp.asarray(plan.first), jnp.asarray(plan.last)
    return jax.lax.map(
        lambda args: rows(args[0], *args[3:], args[1], args[2]), (jnp.arange(len(plan.first)), *bounds, *split)
    )


def _join(blocks: Array) -> Array:
    """``[blocks, B, K, G, t, X]`` to ``[B, K, G, T, X]``."""
    moved = jnp.moveaxis(blocks, 0, 3)
    return moved.reshape(*moved.shape[:3], -1, moved.shape[-1])


def _pad_bias(plan: _Plan, bias: Any) -> Any:
    """An array filled up to whole blocks where it has them: a slice beyond the end would be moved, not cut."""
    if bias is None or plan.tree is not None:
        return bias
    short = (plan.padded[0] - plan.dims[2], plan.padded[1] - plan.dims[3])
    extra = [missing if size > 1 else 0 for missing, size in zip(short, bias.shape[2:], strict=True)]
    return jnp.pad(bias, ((0, 0), (0, 0), (0, extra[0]), (0, extra[1])))


def _attend_forward(plan, query, key, value, bias, extras):
    output, log_weight = _forward(plan, query, key, value, bias, extras)
    return output, (query, key, value, bias, extras, output, log_weight)


def _attend_backward(plan, saved, upstream):
    """Each block's weights again, from the log-sum-exp; gradients of keys, values and bias add up block by block."""
    query, key, value, bias, extras, output, log_weight = saved
    padded, key_block = _pad_bias(plan, bias), plan.blocks[1]
    # The sum over keys of weight times its gradient, which the softmax subtracts.
    level = (upstream.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1)
    add = lambda x, block, j: jax.lax.dynamic_update_slice_in_dim(
        x, _slice(x, j, key_block) + block, j * key_block, axis=x.ndim - 2
    )

    def rows(sums, given):
        i, first, last, query_block, upstream_block, log_block, level_block = given

        def visit(j, carry):
            d_query, d_key, d_value, d_bias = carry
            allowed, kept = _tile(plan, extras, key.shape[1], i, j)
            key_part, value_part = _slice(key, j, key_block), _slice(value, j, key_block)
            logits = _logits(plan, query_block, key_part, padded, i, j)
            weights = jnp.where(allowed, jnp.exp(jnp.where(allowed, logits, _LOW) - log_block[..., None]), 0.0)
            d_mixing = jnp.einsum("bkgtj,bksj->bkgts", upstream_block, value_part, preferred_element_type=jnp.float32)
            mixing = weights
            if kept is not None:
                mixing, d_mixing = (jnp.where(kept, x * (1 / (1 - plan.rate)), 0.0) for x in (weights, d_mixing))
            # where, not only the weight of 0: what came from above may hold a NaN in rows that see nothing.
            d_logits = jnp.where(allowed, weights * (d_mixing - level_block[..., None]), 0.0)
            d_scores = _through_score(plan, query_block, key_part, d_logits)
            narrow = (d_scores * plan.scale).astype(query.dtype)
            d_query += jnp.einsum("bkgts,bksh->bkgth", narrow, key_part, preferred_element_type=jnp.float32)
            one_key = jnp.einsum("bkgts,bkgth->bksh", narrow, query_block, preferred_element_type=jnp.float32)
            one_value = jnp.einsum(
                "bkgts,bkgtj->bksj", mixing.astype(value.dtype), upstream_block, preferred_element_type=jnp.float32
            )
            if plan.tree is not None:
                d_bias, by_bias = _through_bias(plan, bias, d_bias, query_block, d_logits, i, j)
                d_query += by_bias
            elif d_bias is not None:
                d_bias = _add_bias(plan, d_bias, d_logits, i, j)
            return d_query, add(d_key, one_key, j), add(d_value, one_value, j), d_bias

        d_query, *sums = jax.lax.fori_loop(first, last, visit, (jnp.zeros(query_block.shape), *sums))
        return tuple(sums), d_query

    of_bias = [jnp.zeros(x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else None for x in jax.tree.leaves(padded)]
    of_bias = of_bias if plan.tree is not None else of_bias[0] if of_bias else None
    zeros = (jnp.zeros(key.shape), jnp.zeros(value.shape), of_bias)
    blocks = [jnp.moveaxis(x.reshape(*x.shape[:3], len(plan.first), -1, *x.shape[4:]), 3, 0)
              for x in (query, upstream, log_weight, level)]  # fmt: skip
    given = (jnp.arange(len(plan.first)), jnp.asarray(plan.first), jnp.asarray(plan.last), *blocks)
    (d_key, d_value, d_bias), d_query = jax.lax.scan(rows, zeros, given)
    if plan.tree is not None:  # whole numbers have no gradient, and float0 says so
        none = lambda x: np.zeros(x.shape, jax.dtypes.float0)
        d_bias = tuple(none(x) if d is None else d.astype(x.dtype) for x, d in zip(bias, d_bias, strict=True))
    elif bias is not None and d_bias is not None:
        d_bias = d_bias[:, :, : bias.shape[2], : bias.shape[3]].astype(bias.dtype)
    return _join(d_query).astype(query.dtype), d_key.astype(key.dtype), d_value.astype(value.dtype), d_bias, None


def _through_score(plan: _Plan, query: Array, key: Array, d_logits: Array) -> Array:
    """The gradient of the scaled products, from that of the logits."""
    if plan.score is None:
        return d_logits
    scaled = jnp.einsum("bkgth,bksh->bkgts", query, key, preferred_element_type=jnp.float32) * plan.scale
    return jax.vjp(plan.score, scaled)[1](d_logits)[0]


def _through_bias(plan: _Plan, leaves, d_leaves, query: Array, d_logits: Array, i: Array, j: Array):
    """The gradients of a bias's leaves with one block more, and that of the block's queries through it."""

    def tile(learned: list[Array | None], query: Array) -> Array:
        given = [old if new is None else new.astype(old.dtype) for old, new in zip(leaves, learned, strict=True)]
        found = _bias_tile(plan, given, query, i, j).astype(jnp.float32)
        return jnp.broadcast_to(_by_head(found, query.shape[1]), d_logits.shape)

    learned = [None if d is None else x.astype(jnp.float32) for x, d in zip(leaves, d_leaves, strict=True)]
    _, pull = jax.vjp(tile, learned, query)
    one, by_query = pull(d_logits)
    return jax.tree.map(jnp.add, d_leaves, one), by_query.astype(jnp.float32)


def _add_bias(plan: _Plan, d_bias: Array, d_logits: Array, i: Array, j: Array) -> Array:
    """The bias's gradient with one block more: summed over the dimensions in which the bias is broadcast."""
    whole = d_logits.reshape(d_logits.shape[0], -1, *d_logits.shape[3:])
    start, size = _bias_start(plan, d_bias, i, j)
    narrow = tuple(dim for dim in range(4) if size[dim] == 1 and whole.shape[dim] != 1)
    block = whole.sum(narrow, keepdims=True)
    return jax.lax.dynamic_update_slice(d_bias, jax.lax.dynamic_slice(d_bias, start, size) + block, start)


_attend.defvjp(_attend_forward, _attend_backward)
