"""Other ways to compute causal attention on a CPU, for `benchmarks.attention`; none is in the library.

Each takes blocks of 256 queries. Where the softmax of a block is one softmax over exactly the keys that its queries
see, a Python loop makes the blocks, so that the program grows with the length; logits are in powers of 2.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

BLOCK = 256


def one_softmax(query, key, value, *, heads):
    """Computes one softmax for each block of queries, `heads` heads at a time."""

    def blocks(arrays):
        query, key, value = arrays
        outputs = []
        for start in range(0, query.shape[1], BLOCK):
            rows, stop = query[:, start : start + BLOCK], start + BLOCK
            logits = jnp.where(_seen(rows.shape[1], start), jnp.einsum("nth,nsh->nts", rows, key[:, :stop]), -jnp.inf)
            weights = jnp.exp2(logits - logits.max(-1, keepdims=True))
            output = jnp.einsum("nts,nsh->nth", weights, value[:, :stop])
            outputs.append(output / weights.sum(-1, keepdims=True))
        return jnp.concatenate(outputs, 1)

    return _in_parts(blocks, query * _scale(query), key, value, heads)


def transposed(query, key, value, *, heads):
    """Computes `one_softmax` with logits ``[keys, queries]``, so that sums run over rows."""

    def blocks(arrays):
        query, key, value = arrays
        query, value, outputs = query.swapaxes(1, 2), value.swapaxes(1, 2), []
        for start in range(0, query.shape[2], BLOCK):
            rows, stop = query[:, :, start : start + BLOCK], start + BLOCK
            logits = jnp.einsum("nsh,nht->nst", key[:, :stop], rows)
            logits = jnp.where(_seen(rows.shape[2], start).T, logits, -jnp.inf)
            weights = jnp.exp2(logits - logits.max(1, keepdims=True))
            output = jnp.einsum("nhs,nst->nht", value[:, :, :stop], weights)
            outputs.append(output / weights.sum(1, keepdims=True))
        return jnp.concatenate(outputs, 2).swapaxes(1, 2)

    return _in_parts(blocks, query * _scale(query), key, value, heads)


def diagonal_apart(query, key, value, *, heads):
    """Computes an online softmax in loops, as "blockwise" does; only the tile at the diagonal is masked."""

    def blocks(arrays):
        query, key, value = arrays
        size = min(BLOCK, query.shape[1])
        at = lambda x, index: jax.lax.dynamic_slice_in_dim(x, index * size, size, 1)

        def row(index):
            rows = at(query, index)

            def weigh(carry, logits, column):
                total, high, norm = carry
                higher = jnp.maximum(high, logits.max(-1))
                weights, shrink = jnp.exp2(logits - higher[..., None]), jnp.exp2(high - higher)
                total = total * shrink[..., None] + jnp.einsum("nts,nsh->nth", weights, at(value, column))
                return total, higher, norm * shrink + weights.sum(-1)

            product = lambda column: jnp.einsum("nth,nsh->nts", rows, at(key, column))
            nothing = jnp.zeros(rows.shape), jnp.full(rows.shape[:2], -1e30), jnp.zeros(rows.shape[:2])
            carry = weigh(nothing, jnp.where(_seen(size, 0), product(index), -jnp.inf), index)
            carry = jax.lax.fori_loop(0, index, lambda column, carry: weigh(carry, product(column), column), carry)
            return carry[0] / carry[2][..., None]

        output = jax.lax.map(row, jnp.arange(query.shape[1] // size))
        return output.swapaxes(0, 1).reshape(query.shape)

    return _in_parts(blocks, query * _scale(query), key, value, heads)


def products(query, key, value, *, heads):
    """Computes the two products of `one_softmax` alone, without a softmax: another result, and a bound of its time."""

    def blocks(arrays):
        query, key, value = arrays
        outputs = []
        for start in range(0, query.shape[1], BLOCK):
            logits = jnp.einsum("nth,nsh->nts", query[:, start : start + BLOCK], key[:, : start + BLOCK])
            outputs.append(jnp.einsum("nts,nsh->nth", logits, value[:, : start + BLOCK]))
        return jnp.concatenate(outputs, 1)

    return _in_parts(blocks, query, key, value, heads)


def _scale(query):
    return math.log2(math.e) / math.sqrt(query.shape[-1])


def _seen(queries, start):
    return jnp.arange(start + queries)[None] <= start + jnp.arange(queries)[:, None]


def _in_parts(blocks, query, key, value, heads):
    """Calls a function of ``[heads, T, H]`` for all heads of ``[B, T, N, H]``."""
    batch, length, num_heads, dim = query.shape
    parts = [x.swapaxes(1, 2).reshape(-1, heads, length, dim) for x in (query, key, value)]
    return jax.lax.map(blocks, tuple(parts)).reshape(batch, num_heads, length, dim).swapaxes(1, 2)


IDEAS = {
    "one head": functools.partial(one_softmax, heads=1),
    "eight heads": functools.partial(one_softmax, heads=8),
    "transposed": functools.partial(transposed, heads=8),
    "diagonal apart": functools.partial(diagonal_apart, heads=8),
    "products alone": functools.partial(products, heads=8),
}
