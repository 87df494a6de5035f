"""Tiles of the logits: the ranges of keys to visit, and the positions, rows, heads, mask and dropout of each tile."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer import targets
from jaxformer.functional.attention.base import Request, ScoreFunction
from jaxformer.functional.dropout import flat_index, keep
from jaxformer.masks import Mask

BLOCK, LARGEST_BLOCK = 256, 1024
"""The default number of queries and of keys in a tile; on a GPU, the largest number."""
TILES = 1 << 27
"""The maximum number of logits in the tiles of all rows and heads on a GPU: 512 MiB at a time."""


Origin: TypeAlias = tuple[int | Array, int | Array]
"""The indices of the first row of the batch and of the first head of a shard or a tile."""

BiasArrays: TypeAlias = Array | tuple[Array, ...] | None
"""The arrays of a bias: itself, the leaves of a `Bias`, or None."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The static part of blockwise attention."""

    dims: tuple[int, int, int, int]  # full B, N, T, S; positions from T and S on are padding
    blocks: tuple[int, int]  # queries and keys of a tile
    part: tuple[int, int]  # rows of the batch and key heads that share a loop iteration
    scale: float
    score: ScoreFunction | None
    rate: float  # of dropout
    tree: Any  # the tree structure of the bias
    unpadded: bool  # every block is full, so no position needs to be compared with T and S


class Varying(NamedTuple):
    """Inputs that may differ between calls of one program and have no gradient."""

    bounds: Array
    """int32 [parts of the batch or 1, blocks of queries, 2]: the first block of keys, and one past the last."""
    mask: Mask | None
    dropout_key: Array | None = None
    positions: tuple[Array, Array] | None = None
    """The positions of the queries and of the keys, consecutive in each block; None where they are 0, 1, 2, ..."""
    origin: Origin = (0, 0)
    """The first row of the batch and the first head of the arrays, if they are a shard."""


def key_ranges(
    mask: Mask | None, num_queries: int, query_block: int, *, rows: tuple[int | Array, int], rows_per_part: int
) -> np.ndarray | Array:
    """Returns, for each block of queries, a range (start, stop) that contains all keys it sees.

    Returns:
      ``int32 [parts or 1, blocks, 2]``; a NumPy array, with one part, if the ranges do not depend on data.

    Args:
      rows: the first row of this shard of the batch, and its number of rows.
    """
    start = np.arange(0, num_queries, query_block)
    stop = np.minimum(start + query_block, num_queries)
    first, last = (Mask() if mask is None else mask).ranges(start, stop)
    if isinstance(first, np.ndarray):
        return np.stack([first, last], -1).swapaxes(0, 1)
    ranges = jnp.stack([first, last], -1).swapaxes(0, 1)
    if len(ranges) not in (1, rows[1]):  # the mask covers the full batch
        ranges = jax.lax.dynamic_slice_in_dim(ranges, *rows)
    if len(ranges) > 1:
        ranges = _hull(ranges.reshape(-1, rows_per_part, *ranges.shape[1:]))
    return _same_under_vmap(ranges)


def _hull(ranges: Array) -> Array:
    """Returns the smallest range that covers all non-empty ranges along the second dimension."""
    first, last = ranges[..., 0], ranges[..., 1]
    nonempty = first < last
    smallest = jnp.where(nonempty, first, np.iinfo(np.int32).max).min(1)
    return jnp.stack([smallest, jnp.where(nonempty, last, 0).max(1)], -1)


@jax.custom_batching.custom_vmap
def _same_under_vmap(ranges: Array) -> Array:
    """Makes all examples of a `vmap` share a range; otherwise, a loop would copy its carry in each iteration."""
    return ranges


@_same_under_vmap.def_vmap
def _(size, is_mapped, ranges):
    del size, is_mapped  # the only argument is mapped
    return _same_under_vmap(_hull(ranges.swapaxes(0, 1))), False


def key_bounds(ranges: np.ndarray | Array, starts: np.ndarray | Array, key_block: int) -> Array:
    """Returns the first of the key blocks that overlap each range, and one past the last.

    Args:
      ranges: (start, stop) of keys, ``[..., 2]``.
      starts: the first key of each block.
    """
    numpy = jnp if isinstance(ranges, jax.Array) or isinstance(starts, jax.Array) else np
    starts = starts.reshape((1,) * (ranges.ndim - 1) + (-1,))
    first, last = ranges[..., :1], ranges[..., 1:]
    needed = (starts < last) & (starts + key_block > first) & (last > first)
    end = needed.shape[-1] - needed[..., ::-1].argmax(-1)
    bounds = numpy.stack([needed.argmax(-1), numpy.where(needed.any(-1), end, 0)], -1)
    return jnp.asarray(bounds, jax.dtypes.canonicalize_dtype(int))  # all indices of a slice must have one dtype


class Location(NamedTuple):
    """The location of a row of tiles."""

    batch_start: int | Array
    head_start: int | Array  # of the key heads
    query_block: Array


def tile_rows(tiling: Tiling, key: Array, varying: Varying) -> tuple[Array, Array]:
    """Returns the index of each row of tiles, and its bounds."""
    parts = key.shape[0] // tiling.part[0], key.shape[2] // tiling.part[1]
    bounds = jnp.broadcast_to(varying.bounds[:, None], (*parts, *varying.bounds.shape[1:])).reshape(-1, 2)
    return jnp.arange(len(bounds)), bounds


def location_of(tiling: Tiling, key: Array, varying: Varying, index: Array) -> Location:
    """Returns the location of the row of tiles with this index."""
    part, query_block = jnp.divmod(index, varying.bounds.shape[1])
    batch_part, head_part = jnp.divmod(part, key.shape[2] // tiling.part[1])
    batch_size, num_heads = tiling.part
    # With a plain 0 for a single part, XLA removes slices of the full dimension.
    batch_start = 0 if key.shape[0] == batch_size else batch_part * batch_size
    head_start = 0 if key.shape[2] == num_heads else head_part * num_heads
    return Location(batch_start, head_start, query_block)


class Tile(NamedTuple):
    """The contents of a tile that are computed before its matrix products."""

    positions: tuple[Array, Array]  # of its queries and keys; at padding, the last ones are repeated
    origin: Origin
    allowed: Array  # Bool [b, k, g, t, s]
    kept: Array | None  # the weights that dropout keeps, of the same shape
    key: Array  # [B, K, s, H]; 0 for keys that no query of the tile sees
    value: Array


def tile_at(
    tiling: Tiling, varying: Varying, query: Array, key: Array, value: Array, location: Location, column: Array
) -> Tile:
    """Returns the tile of this row's queries and of the block of keys with index `column`."""
    (_, _, num_queries, num_keys), (query_size, key_size) = tiling.dims, tiling.blocks
    if varying.positions is None:
        query_index = location.query_block * query_size + jnp.arange(query_size)
        key_index = column * key_size + jnp.arange(key_size)
    else:
        query_start, key_start = location.query_block * query_size, column * key_size
        query_index = jax.lax.dynamic_slice_in_dim(varying.positions[0], query_start, query_size)
        key_index = jax.lax.dynamic_slice_in_dim(varying.positions[1], key_start, key_size)
    allowed = jnp.ones((1, 1, 1, 1), bool)
    if not tiling.unpadded:
        allowed = ((query_index < num_queries)[:, None] & (key_index < num_keys)[None])[None, None]
        query_index, key_index = jnp.minimum(query_index, num_queries - 1), jnp.minimum(key_index, num_keys - 1)
    # A mask may cover all rows and heads, while this tile covers some of them.
    sizes = query.shape[0], query.shape[1] * query.shape[2]
    origin = (
        varying.origin[0] + location.batch_start,
        varying.origin[1] + location.head_start * query.shape[2],
    )
    if varying.mask is not None:
        allowed = allowed & take_part(varying.mask.tile(query_index, key_index), origin, sizes)
    allowed, kept = split_heads(allowed, query.shape[1]), None
    if varying.dropout_key is not None:
        rows, heads = (start + jnp.arange(size) for start, size in zip(origin, sizes, strict=True))
        indices = jnp.ix_(rows, heads, query_index, key_index)
        kept = keep(varying.dropout_key, tiling.rate, flat_index(tiling.dims, indices))
        kept = split_heads(kept, query.shape[1])
    key, value = (keys_at(tiling, x, location, column) for x in (key, value))
    if varying.mask is not None:  # unseen keys may hold NaN, and 0 times NaN is NaN
        seen = allowed.any((2, 3))[..., None]
        key, value = jnp.where(seen, key, 0), jnp.where(seen, value, 0)
    return Tile((query_index, key_index), origin, allowed, kept, key, value)


def take_part(tile: Array, origin: Origin, sizes: tuple[int, int]) -> Array:
    """Returns the rows and heads that start at `origin` of a tile ``[b, n, t, s]`` that may cover all of them."""
    for dim, (start, size) in enumerate(zip(origin, sizes, strict=True)):
        if tile.shape[dim] not in (1, size):
            tile = jax.lax.dynamic_slice_in_dim(tile, start, size, dim)
    return tile


def split_heads(x: Array, num_kv_heads: int) -> Array:
    """Reshapes ``[b, n, ...]`` to ``[b, K or 1, G or 1, ...]``."""
    heads = (1, 1) if x.shape[1] == 1 else (num_kv_heads, x.shape[1] // num_kv_heads)
    return x.reshape(x.shape[0], *heads, *x.shape[2:])


def keys_at(tiling: Tiling, x: Float[Array, "B S K X"], location: Location, column: Array) -> Float[Array, "b k s X"]:
    """Returns one block of the keys or values of a part."""
    (rows, heads), size = tiling.part, tiling.blocks[1]
    start = location.batch_start, column * size, location.head_start, 0
    return jax.lax.dynamic_slice(x, start, (rows, size, heads, x.shape[3])).swapaxes(1, 2)


def queries_at(tiling: Tiling, x: Float[Array, "B T N X"], key: Array, location: Location) -> Float[Array, "b k G t X"]:
    """Returns one block of the queries, or of another array with a vector for each query."""
    (rows, heads), size, group = tiling.part, tiling.blocks[0], x.shape[2] // key.shape[2]
    start = location.batch_start, location.query_block * size, location.head_start * group, 0
    block = jax.lax.dynamic_slice(x, start, (rows, size, heads * group, x.shape[3]))
    return block.reshape(rows, size, heads, group, -1).transpose(0, 2, 3, 1, 4)


def join_tile_rows(x: Float[Array, "rows b k G t X"], query: Array, key: Array) -> Float[Array, "B T N X"]:
    """Joins the results of all rows of tiles into one array."""
    _, b, k, group, size, dim = x.shape
    batch, length, heads = query.shape[:3]
    tiles = x.reshape(batch // b, key.shape[2] // k, length // size, b, k, group, size, dim)
    return tiles.transpose(0, 3, 2, 6, 1, 4, 5, 7).reshape(batch, length, heads, dim)


def block_size(request: Request) -> int:
    """Returns the default number of queries and keys in a tile: `BLOCK`, which fits in a CPU's cache, or more on a GPU.

    A GPU computes the tiles of all rows and heads together and waits at each step of the loop. Measured on an H200 in
    bfloat16, causal, heads of 64, milliseconds forward / with the gradient, blocks of 256, 512 and 1,024:
    8 x 2,048 positions with 16 heads 3.1 / 8.4, 2.4 / 6.3 and 2.4 / 6.0; 2 x 8,192 positions 20.6 / 50.9, 10.2 / 26.2
    and 7.6 / 18.9. "reference" takes 2.0 / 7.7 and 8.1 / 29.5.
    """
    if targets.devices()[0].platform != "gpu":
        return BLOCK
    side = math.isqrt(TILES // max(1, request.query.shape[0] * request.query.shape[2]))
    return next((size for size in (LARGEST_BLOCK, LARGEST_BLOCK // 2) if size <= side), BLOCK)
