"""Each mask has its meaning and tight ranges, and its constructor refuses wrong arguments."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, sharding
from jaxformer.masks import UNBOUNDED
from tests.modules.small import quick

PACKED = [[1, 1, 1, 2, 2, 2, 3, 3], [1, 1, 2, 2, 2, 2, 2, 0]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (masks.causal() & masks.window(2), None),
        (masks.dense(np.eye(8, dtype=bool)), None),
        (~masks.lengths([3]), None),
        (masks.lengths([3, 9]), [[(0, 3), (0, 9)]]),
        (masks.padding(np.array([[0, 1, 0, 1, 0, 0, 0, 0], [0] * 8]) == 1), [[(1, 4), (0, 0)]]),
        (masks.causal(jnp.int32(2)), [[(0, 6)], [(0, 10)]]),
        (masks.segments(PACKED), [[(0, 6), (0, 7)], [(3, 8), (0, 8)]]),
        (masks.segments(-np.array(PACKED)), [[(0, 6), (0, 7)], [(3, 8), (0, 8)]]),
        (masks.lengths([5]) & masks.causal(), [[(0, 4)], [(0, 5)]]),
        (masks.window(1) & masks.lengths([5]), [[(0, 4)], [(3, 5)]]),
        (masks.causal() | masks.lengths([5]), [[(0, 5)], [(0, 8)]]),
        ((masks.causal() & masks.lengths([6])) | masks.prefix([2]), [[(0, 4)], [(0, 6)]]),
        (masks.lengths([5]) | ~masks.lengths([5]), [[(0, 2**31 - 1)]] * 2),
    ],
)
def test_live_ranges_are_tight(mask, expected):
    """Queries 0 to 3 and 4 to 7: [block][example], start and stop."""
    result = mask.live_ranges(np.array([0, 4]), np.array([4, 8]))
    if result is not None:
        result = [[tuple(pair) for pair in block] for block in np.stack(result, -1).tolist()]
    assert result == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (masks.causal(), (0, 8)),
        (masks.causal(3), (0, 11)),
        (masks.causal(-20), (0, 0)),
        (masks.window(2, 1), (2, 9)),
        (masks.window(9), (0, 8)),
        (masks.causal() & masks.window(1, 5), (3, 8)),
        (masks.causal() | masks.window(1, 5), (0, 13)),
        (~masks.causal(), (0, UNBOUNDED)),
        (masks.causal(jnp.int32(0)), (0, UNBOUNDED)),
        (masks.lengths([3, 4]) & masks.causal(), (0, 8)),
        (masks.block_sparse(np.eye(4, dtype=bool), 3), (3, 9)),
        (masks.block_sparse(np.zeros((4, 4), bool), 3), (0, 0)),
    ],
)
def test_key_range_is_tight(mask, expected):
    """Queries 4 to 7: without these bounds window attention would cost O(T S)."""
    assert mask.key_range(4, 8) == expected


def test_meanings():
    grid = lambda mask, rows=3, columns=4: np.asarray(mask.dense(rows, columns)[..., 0, :, :]).astype(int).tolist()
    assert grid(masks.causal(1)) == [[[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]]
    assert grid(masks.causal(jnp.int32(1))) == grid(masks.causal(1))
    assert grid(masks.window(1, 1)) == [[[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]]
    assert grid(masks.lengths([2, 0]), 1) == [[[1, 1, 0, 0]], [[0, 0, 0, 0]]]
    assert grid(masks.causal() | masks.prefix([2]), 2) == [[[1, 1, 0, 0], [1, 1, 0, 0]]]
    packed = masks.segments(np.array([[1, 1, 2]]))
    assert grid(packed, 3, 3) == [[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]


def test_padding_of_one_example_is_that_of_every_example():
    """Beside a batch it broadcasts, in one example it is a row under vmap, and it covers S keys."""
    valid, batch = np.array([True, False, True]), np.array([[True, True, False], [False, True, True]])
    one = masks.padding(valid)
    np.testing.assert_array_equal(one.dense(2, 3), masks.padding(valid[None]).dense(2, 3))
    np.testing.assert_array_equal((one & masks.padding(batch)).dense(2, 3), masks.padding(batch & valid).dense(2, 3))
    np.testing.assert_array_equal((masks.padding(batch) | ~one).dense(2, 3), masks.padding(batch | ~valid).dense(2, 3))
    of_each = jax.jit(jax.vmap(lambda valid: (masks.causal() & masks.padding(valid)).dense(3, 3)[0]))(batch)
    np.testing.assert_array_equal(of_each, (masks.causal() & masks.padding(batch)).dense(3, 3))


@pytest.mark.full
@pytest.mark.parametrize("make", [masks.prefix, masks.lengths])
def test_one_length_is_that_of_every_example(make):
    """As written in `causal() | prefix(n)`: beside masks of a batch, in ranges, at positions and under vmap."""
    one, each = make(3), make([3, 3])
    others = masks.lengths([5, 2]), masks.padding(np.array([[True] * 5, [False] + [True] * 4]))
    algebra = [lambda x: x, lambda x: masks.causal() | x, lambda x: x & others[0], lambda x: others[1] | ~x]
    positions = np.array([[4, 3, 2, 1, 0], [0, 2, 4, 6, 8]])
    rows = np.array([0, 2]), np.array([2, 5])
    for wrap in algebra:
        for got, want in [
            (wrap(one).dense(5, 5), wrap(each).dense(5, 5)),
            *((wrap(one).at_positions(positions, x).dense(5, 5), wrap(each).at_positions(positions, x).dense(5, 5))
              for x in (positions, positions[:1])),
            *zip(wrap(one).ranges(*rows), wrap(each).ranges(*rows), strict=True),
        ]:  # fmt: skip
            np.testing.assert_array_equal(*np.broadcast_arrays(got, want))
    of_each = jax.jit(jax.vmap(lambda length: (masks.causal() | make(length)).dense(3, 3)[0]))(jnp.array([1, 2]))
    np.testing.assert_array_equal(of_each, (masks.causal() | make([1, 2])).dense(3, 3))


ONE = np.array([True, True, False, True, False, True])
OF_ALL = {
    # name: a mask of one example, and the same of each
    "length": (masks.causal() | masks.prefix(3), masks.causal() | masks.prefix([3, 3])),
    "padding": (masks.causal() & masks.padding(ONE), masks.causal() & masks.padding(np.stack([ONE] * 2))),
}


@pytest.mark.full
@pytest.mark.parametrize("name", OF_ALL)
def test_attention_with_the_mask_of_one_example(name):
    """In the definition, in every implementation for the CPU, and on a mesh that shards the examples."""
    query, key, value = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, 6, 2, 4)), jnp.float32)
    mesh, (mask, of_each) = sharding.mesh("data=2,context=2", jax.devices()[:4]), OF_ALL[name]
    ways = [functools.partial(functional.attention, implementation=x) for x in ("reference", "blockwise", "xla")]
    ways += [sharding.ring_attention(mesh, "context", batch="data")]
    ways += [sharding.sharded_attention(mesh, implementation="blockwise")]

    @quick
    def results(query, key, value):
        expected = functional.attention(query, key, value, mask=of_each)
        head = functional.attention_head(query[1, :, 1], key[1, :, 1], value[1, :, 1], mask=mask)[0]
        return expected, head, [attend(query, key, value, mask=mask) for attend in ways]

    expected, head, found = results(query, key, value)
    np.testing.assert_allclose(head, expected[1, :, 1], atol=1e-6)
    for got in found:
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_a_stored_mask_uses_indices():
    """For any positions; its other properties are those of the mask."""
    positions = np.array([[4, 3, 2], [0, 1, 0]])
    inner = masks.causal() & masks.padding([[True, True, True], [False, True, True]])
    mask = masks.stored(inner)
    for found in (mask.dense(3, 3), mask.at_positions(positions, positions).dense(3, 3)):
        np.testing.assert_array_equal(found, inner.dense(3, 3))
    assert not (inner.at_positions(positions, positions).dense(3, 3) == inner.dense(3, 3)).all()
    rows = np.array([0, 2]), np.array([2, 3])
    chex.assert_trees_all_equal(mask.ranges(*rows), inner.ranges(*rows))
    assert (mask.finite, masks.stored(masks.dense(np.ones((3, 3), bool), finite=True)).finite) == (False, True)


def test_a_prefix_is_of_positions_and_lengths_are_of_stored_keys():
    """Of two stored keys at positions 3 and 4, the query at 3 does not see the later one."""
    query, key = np.array([[3]]), np.array([[3, 4]])
    seen = lambda mask, *at: mask.at_positions(*at).dense(1, 2)[:, 0, 0].astype(int).tolist()
    assert seen(masks.causal() | masks.prefix([2]), query, key) == [[1, 0]]
    assert seen(masks.causal() | masks.prefix([2, 5]), query, key) == [[1, 0], [1, 1]]
    assert seen(masks.prefix([2, 2]), np.array([[0], [3]]), np.array([[1, 2], [3, 4]])) == [[1, 0], [0, 0]]
    assert seen(masks.lengths([1]), query, key) == [[1, 0]]


def test_an_offset_of_numpy_is_static():
    assert masks.causal(np.int64(3)) == masks.causal(3)
