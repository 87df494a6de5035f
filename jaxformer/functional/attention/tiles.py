"""Tiles: where each is in the whole, which positions, rows and heads it covers, and what is known of it beforehand."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.functional.attention.base import Score, keep_tile
from jaxformer.functional.dropout import Dropout
from jaxformer.masks import Mask


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static."""

    dims: tuple[int, int, int, int]  # B, N, T, S of the whole: positions from T and S on do not exist
    blocks: tuple[int, int]
    part: tuple[int, int]  # how many rows of the batch, and key heads, are worked on together
    scale: float
    score: Score | None
    rate: float
    tree: Any  # how the leaves of a `Bias` make one; None for an array, or for no bias
    whole: bool  # every block is full: no position needs to be compared with T and S


class Varying(NamedTuple):
    """What may differ between calls of one program, and is not differentiated."""

    bounds: (
        Array  # int32 [parts of the batch or 1, blocks of queries, 2]: the first and one past the last block of keys
    )
    mask: Mask | None
    dropout_key: Array | None = None
    places: tuple[Array, Array] | None = None
    """The positions of the queries and of the keys, consecutive in each block; None where they are 0, 1, 2, ..."""
    origin: tuple[Any, Any] = (0, 0)
    """The first row of the batch and the first head, where these are not all."""


class Spot(NamedTuple):
    """Where a row of tiles is: its first row of the batch, its first key head, its block of queries."""

    row: Any
    head: Any
    block: Array


def numbered(plan: Plan, key: Array, varying: Varying) -> tuple[Array, Array]:
    """The numbers of the rows of tiles, and the bounds of each."""
    parts = key.shape[0] // plan.part[0], key.shape[2] // plan.part[1]
    bounds = jnp.broadcast_to(varying.bounds[:, None], (*parts, *varying.bounds.shape[1:])).reshape(-1, 2)
    return jnp.arange(len(bounds)), bounds


def spot_of(plan: Plan, key: Array, varying: Varying, number: Array) -> Spot:
    """Where the row of tiles of this number is."""
    part, block = jnp.divmod(number, varying.bounds.shape[1])
    row, head = jnp.divmod(part, key.shape[2] // plan.part[1])
    # A plain 0 where there is one part: a slice of everything is no slice.
    starts = (
        0 if all_ == one else n * one for n, one, all_ in zip((row, head), plan.part, key.shape[::2], strict=True)
    )
    return Spot(*starts, block)


class Tile(NamedTuple):
    """What is known of a tile before its products."""

    places: tuple[Array, Array]  # positions of its queries and keys; beyond the ends, the last ones again
    origin: tuple[Any, Any]  # its first row of the batch and its first head
    allowed: Array  # Bool [b, k, g, t, s]
    kept: Array | None  # what dropout keeps, likewise
    key: Array  # [B, K, s, H]; 0 where none of the block's queries look
    value: Array


def tile_at(plan: Plan, varying: Varying, query: Array, key: Array, value: Array, spot: Spot, j: Array) -> Tile:
    """The tile of this row's queries and of block j of the keys."""
    (_, _, num_queries, num_keys), (query_block, key_block) = plan.dims, plan.blocks
    if varying.places is None:
        places = spot.block * query_block + jnp.arange(query_block), j * key_block + jnp.arange(key_block)
    else:
        starts = (spot.block * query_block, query_block), (j * key_block, key_block)
        places = tuple(jax.lax.dynamic_slice_in_dim(x, *y) for x, y in zip(varying.places, starts, strict=True))
    allowed = jnp.ones((1, 1, 1, 1), bool)
    if not plan.whole:
        allowed = ((places[0] < num_queries)[:, None] & (places[1] < num_keys)[None])[None, None]
        places = jnp.minimum(places[0], num_queries - 1), jnp.minimum(places[1], num_keys - 1)
    # What is said of all rows and heads, of those that are here.
    sizes = query.shape[0], query.shape[1] * query.shape[2]
    origin = varying.origin[0] + spot.row, varying.origin[1] + spot.head * query.shape[2]
    if varying.mask is not None:
        allowed = allowed & here(varying.mask.tile(*places), origin, sizes)
    allowed, kept = spread(allowed, query.shape[1]), None
    if varying.dropout_key is not None:
        rows, heads = (start + jnp.arange(size) for start, size in zip(origin, sizes, strict=True))
        indices = jnp.ix_(rows, heads, *places)
        kept = spread(keep_tile(Dropout(plan.rate, varying.dropout_key), plan.dims, indices), query.shape[1])
    key, value = (keys_at(plan, x, spot, j) for x in (key, value))
    if varying.mask is not None:  # what no query looks at may be NaN, and 0 times NaN is NaN
        seen = allowed.any((2, 3))[..., None]
        key, value = jnp.where(seen, key, 0), jnp.where(seen, value, 0)
    return Tile(places, origin, allowed, kept, key, value)


def here(tile: Array, origin: tuple[Any, Any], sizes: tuple[int, int]) -> Array:
    """The rows and heads from `origin` on of a tile ``[b, n, t, s]`` of all of them."""
    for dim, (start, size) in enumerate(zip(origin, sizes, strict=True)):
        if tile.shape[dim] not in (1, size):
            tile = jax.lax.dynamic_slice_in_dim(tile, start, size, dim)
    return tile


def spread(x: Array, num_kv_heads: int) -> Array:
    """``[b, n, ...]`` to ``[b, K or 1, G or 1, ...]``."""
    heads = (1, 1) if x.shape[1] == 1 else (num_kv_heads, x.shape[1] // num_kv_heads)
    return x.reshape(x.shape[0], *heads, *x.shape[2:])


def keys_at(plan: Plan, x: Float[Array, "B S K X"], spot: Spot, j: Array) -> Float[Array, "b k s X"]:
    """Block j of the keys or values of a part."""
    (rows, heads), size = plan.part, plan.blocks[1]
    found = jax.lax.dynamic_slice(x, (spot.row, j * size, spot.head, 0), (rows, size, heads, x.shape[3]))
    return found.swapaxes(1, 2)


def queries_at(plan: Plan, x: Float[Array, "B T N X"], key: Array, spot: Spot) -> Float[Array, "b k G t X"]:
    """A block of what belongs to queries."""
    (rows, heads), size, group = plan.part, plan.blocks[0], x.shape[2] // key.shape[2]
    start = spot.row, spot.block * size, spot.head * group, 0
    found = jax.lax.dynamic_slice(x, start, (rows, size, heads * group, x.shape[3]))
    return found.reshape(rows, size, heads, group, -1).transpose(0, 2, 3, 1, 4)


def join(x: Float[Array, "rows b k G t X"], query: Array, key: Array) -> Float[Array, "B T N X"]:
    """Rows of tiles, put together again."""
    _, b, k, group, size, dim = x.shape
    batch, length, heads = query.shape[:3]
    cut = x.reshape(batch // b, key.shape[2] // k, length // size, b, k, group, size, dim)
    return cut.transpose(0, 3, 2, 6, 1, 4, 5, 7).reshape(batch, length, heads, dim)
