"""The key blocks that a block of queries visits, and the way from tiles back to arrays."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import masks, targets
from jaxformer.functional.attention import tiles
from jaxformer.functional.attention.base import make_request

LAST = np.iinfo(np.int32).max


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [[(0, LAST), (0, LAST), (0, LAST)]]),
        (masks.causal(), [[(0, 4), (0, 8), (0, 10)]]),
        (masks.window(1), [[(0, 4), (3, 8), (7, 10)]]),
    ],
    ids=["none", "causal", "window"],
)
def test_static_key_ranges(mask, expected):
    """Ranges that do not depend on data are a NumPy array with one part."""
    ranges = tiles.key_ranges(mask, 10, 4, rows=(0, 2), rows_per_part=1)
    assert isinstance(ranges, np.ndarray)
    assert [[tuple(x) for x in part] for part in ranges.tolist()] == expected


@pytest.mark.parametrize(
    ("rows", "rows_per_part", "expected"),
    [((0, 4), 1, [(0, 3), (0, 7), (LAST, 0), (0, 5)]), ((0, 4), 2, [(0, 7), (0, 5)]), ((2, 2), 2, [(0, 5)])],
)
def test_key_ranges_of_lengths(rows, rows_per_part, expected):
    """The range of a part holds those of its rows that are not empty; a shard has its own rows of the mask."""
    ranges = tiles.key_ranges(masks.lengths([3, 7, 0, 5]), 10, 10, rows=rows, rows_per_part=rows_per_part)
    assert [tuple(part[0]) for part in ranges.tolist()] == expected


def test_key_bounds():
    """Blocks of four keys: the first that a range meets, and one past the last; none for an empty range."""
    ranges = np.array([[0, 4], [3, 5], [8, LAST], [2, 2]])
    bounds = tiles.key_bounds(ranges, np.arange(0, 12, 4), 4)
    assert bounds.tolist() == [[0, 1], [0, 2], [2, 3], [0, 0]]


@pytest.mark.parametrize("part", [(1, 1), (2, 2), (1, 2)], ids=str)
def test_joined_tile_rows_are_the_queries(part):
    """Each row of tiles takes its block of queries; joined, they are the array again."""
    query, key = jnp.arange(2.0 * 6 * 4 * 3).reshape(2, 6, 4, 3), jnp.zeros((2, 5, 2, 3))
    tiling = tiles.Tiling((2, 4, 6, 5), (3, 5), part, 1.0, None, 0.0, None, unpadded=True)
    varying = tiles.Varying(jnp.zeros((1, 2, 2), int), None)
    indices, bounds = tiles.tile_rows(tiling, key, varying)
    assert len(indices) == len(bounds) == 2 * (2 // part[0]) * (2 // part[1])
    blocks = [tiles.queries_at(tiling, query, key, tiles.location_of(tiling, key, varying, i)) for i in indices]
    np.testing.assert_array_equal(tiles.join_tile_rows(jnp.stack(blocks), query, key), query)


def test_take_part():
    """A dimension of 1, or of the size of the part, is kept; a longer one is sliced."""
    tile = jnp.arange(4 * 6).reshape(4, 6, 1, 1)
    np.testing.assert_array_equal(tiles.take_part(tile, (2, 3), (2, 3)), tile[2:, 3:])
    np.testing.assert_array_equal(tiles.take_part(tile[:1], (2, 0), (2, 6)), tile[:1])


@pytest.mark.parametrize(
    ("platform", "rows", "size"),
    [("gpu", 2, 1024), ("gpu", 8, 1024), ("gpu", 9, 512), ("gpu", 33, 256), ("gpu", 4096, 256), ("cpu", 2, 256)],
)
def test_blocks_are_larger_on_a_gpu(platform, rows, size):
    """The tiles of all rows, with 16 heads, have at most 2**27 logits."""
    x = jax.ShapeDtypeStruct((rows, 4096, 16, 8), jnp.float32)
    with targets.compiling_for([types.SimpleNamespace(platform=platform, device_kind="")]):
        assert tiles.block_size(make_request(x, x, x)) == size
    assert size == 256 or rows * 16 * size**2 <= tiles.TILES
