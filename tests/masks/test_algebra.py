"""The laws of the mask algebra, arrays as masks, and masks under transformations."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer import masks

B, N, T, S = 2, 3, 5, 6
laws = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def integers(shape, high):
    return st.lists(st.integers(0, high), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
        lambda numbers: np.reshape(np.array(numbers, np.int32), shape)
    )


def boolean(*shape):
    return integers(shape, 1).map(lambda numbers: masks.dense(numbers.astype(bool)))


leaves = st.one_of(
    st.integers(-3, 3).map(masks.causal),
    st.integers(-3, 3).map(lambda offset: masks.causal(jnp.int32(offset))),
    st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda w: masks.window(*w)),
    integers((B,), S).map(masks.lengths),
    integers((B,), S).map(masks.prefix),
    integers((B, S), 1).map(lambda x: masks.padding(x.astype(bool))),
    integers((S,), 1).map(lambda x: masks.padding(x.astype(bool))),
    st.tuples(integers((B, T), 2), integers((B, S), 2)).map(lambda x: masks.segments(*x)),
    integers((3, 3), 1).map(lambda x: masks.block_sparse(x.astype(bool), 2)),
    boolean(T, S),
    boolean(B, T, S),
    boolean(1, N, T, S),
    boolean(B, N, 1, 1),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda ab: ab[0] & ab[1]),
        st.tuples(inner, inner).map(lambda ab: ab[0] | ab[1]),
        inner.map(lambda a: ~a),
    ),
    max_leaves=4,
)


def full(mask):
    """Returns the mask as a Boolean array of the full ``[B, N, T, S]``."""
    array = mask.dense(T, S)
    assert array.dtype == bool
    assert array.shape[2:] == (T, S)
    return np.broadcast_to(np.asarray(array), (B, N, T, S))


@laws
@given(expressions, expressions)
def test_de_morgan(a, b):
    np.testing.assert_array_equal(full(~(a & b)), full(~a | ~b))
    np.testing.assert_array_equal(full(~(a | b)), full(~a & ~b))


@laws
@given(expressions, expressions)
def test_operators_equal_those_of_arrays(a, b):
    """So `&` and `|` commute, and double negation is the identity."""
    np.testing.assert_array_equal(full(a & b), full(a) & full(b))
    np.testing.assert_array_equal(full(b | a), full(a) | full(b))
    np.testing.assert_array_equal(full(~~a), full(a))


@laws
@given(expressions, st.integers(0, T - 2), st.integers(0, S - 3))
def test_tile_is_a_slice_of_dense(mask, row, column):
    """A kernel that asks for tiles sees what the reference sees."""
    tile = np.asarray(mask.tile(row + jnp.arange(2), column + jnp.arange(3)))
    assert tile.shape[2] in (1, 2)
    expected = full(mask)[:, :, row : row + 2, column : column + 3]
    np.testing.assert_array_equal(np.broadcast_to(tile, (B, N, 2, 3)), expected)


@laws
@given(expressions, st.integers(0, T - 1), st.integers(1, T))
def test_key_range_holds_every_allowed_key(mask, start, count):
    """Skipping the keys outside of the range is never wrong."""
    stop = min(T, start + count)
    first, last = mask.key_range(start, stop)
    allowed = full(mask)[:, :, start:stop].any((0, 1, 2))
    outside = np.ones(S, bool)
    outside[max(0, first) : max(0, min(last, S))] = False
    assert not (allowed & outside).any()


ordered = st.tuples(integers((B, T), 3), integers((B, S), 3)).map(lambda x: masks.segments(*map(np.sort, x)))


@laws
@given(st.one_of(expressions, ordered), st.lists(st.integers(0, T - 1), min_size=1, max_size=3), st.integers(1, T))
def test_ranges_hold_every_allowed_key_of_each_example(mask, starts, count):
    """Ranges by position and by data, for any blocks of queries; by position alone they are NumPy arrays."""
    start = np.array(starts)
    stop = np.minimum(start + count, T)
    first, last = mask.ranges(start, stop)
    assert isinstance(first, np.ndarray) == isinstance(last, np.ndarray) == (mask.live_ranges(start, stop) is None)
    key = np.arange(S)
    inside = (np.asarray(first)[..., None] <= key) & (key < np.asarray(last)[..., None])
    for i, block in enumerate(np.broadcast_to(inside, (len(start), B, S))):
        assert not (full(mask)[:, :, start[i] : stop[i]].any((1, 2)) & ~block).any()


def test_additive_view():
    """0 if a query may attend, minus infinity otherwise, in the requested dtype."""
    mask = masks.causal() & masks.padding(np.array([[True, False, True]]))
    additive = mask.additive(3, 3, jnp.bfloat16)
    assert additive.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(additive[0, 0], np.float32) == 0, mask.dense(3, 3)[0, 0])
    np.testing.assert_array_equal(np.isneginf(np.asarray(additive[0, 0], np.float32)), ~mask.dense(3, 3)[0, 0])


@pytest.mark.parametrize("dtype", [bool, np.int32, np.float32, np.float64, jnp.bfloat16])
def test_from_binary_reads_ones_as_attend(dtype):
    allowed = np.tri(3, dtype=bool)
    for array in (allowed.astype(dtype), jnp.asarray(allowed).astype(jnp.bfloat16), allowed[None, None].astype(dtype)):
        np.testing.assert_array_equal(masks.from_binary(array).dense(3, 3), masks.causal().dense(3, 3))
    traced = jax.jit(lambda array: masks.from_binary(array).dense(3, 3))(allowed.astype(np.float32))
    np.testing.assert_array_equal(traced, masks.causal().dense(3, 3))


def test_from_torch_reads_one_mask_for_each_head():
    """PyTorch's rank 3 is [B N, T, S] with the heads of an example next to one another."""
    blocked = np.random.default_rng(0).random((6, 2, 3)) < 0.5
    found = masks.from_torch(blocked, num_heads=3).dense(2, 3)
    assert found.shape == (2, 3, 2, 3)
    np.testing.assert_array_equal(found[1, 0], ~blocked[3])
    np.testing.assert_array_equal(masks.from_torch(blocked).dense(2, 3)[:, 0], ~blocked)


def test_combinations_know_that_all_values_are_finite():
    known, unknown = masks.dense([[True]], finite=True), masks.dense([[True]])
    assert all(mask.finite for mask in (known & unknown, unknown | known, ~known))
    assert not any(mask.finite for mask in (unknown & unknown, unknown | unknown, ~unknown, masks.causal()))


@pytest.mark.parametrize("lift", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_arrays_combine_from_either_side(lift):
    array = lift(np.eye(3, dtype=bool))
    for mask in (array & masks.causal(), masks.causal() & array):
        np.testing.assert_array_equal(mask.dense(3, 3)[0, 0], np.eye(3, dtype=bool))
    for mask in (array | masks.causal(), masks.causal() | array):
        np.testing.assert_array_equal(mask.dense(3, 3)[0, 0], np.tri(3, dtype=bool))


def test_masks_pass_through_transformations():
    """A mask is a pytree: an argument of jit, a carry of scan, mapped by vmap, closed over by grad."""
    valid = jnp.array([[True, True, False], [True, False, False]])
    mask = masks.causal() & masks.padding(valid) & ~masks.lengths([0, 0])
    expected = np.asarray(mask.dense(3, 3))
    np.testing.assert_array_equal(jax.jit(lambda m: m.dense(3, 3))(mask), expected)

    def body(mask, row):
        return mask, mask.tile(row[None], jnp.arange(3))[:, :, 0]

    _, rows = jax.lax.scan(body, mask, jnp.arange(3))
    np.testing.assert_array_equal(jnp.moveaxis(rows, 0, 2), expected)
    stacked = masks.Padding(jnp.stack([valid, ~valid]))
    mapped = jax.vmap(lambda m: (masks.causal() & m).dense(3, 3))(stacked)
    np.testing.assert_array_equal(mapped[1], (masks.causal() & masks.padding(~valid)).dense(3, 3))
    slope = jax.grad(lambda x: jnp.sum(jnp.where(mask.dense(3, 3), x, 0.0)))(jnp.ones((2, 1, 3, 3)))
    np.testing.assert_array_equal(slope, expected)


def test_vmap_maps_the_examples_of_a_mask():
    """As the definition is lifted: each call has one example of the queries, the keys and the mask."""
    dense = np.stack([np.ones((4, 4), bool), np.tri(4, dtype=bool)])
    segments = np.array([[1, 1, 1, 2], [1, 2, 2, 2]])
    mask = masks.padding(np.arange(4) >= [[1], [0]]) & masks.lengths([4, 3]) & masks.segments(segments)
    mask = (mask | masks.prefix([1, 0])) & masks.dense(dense)

    def views(mask):
        start, stop = mask.ranges(np.array([0, 2]), np.array([2, 4]))
        return mask.dense(4, 4), start.T, stop.T

    each, batch = jax.jit(lambda mask: (jax.vmap(views)(mask), views(mask)))(mask)
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[:, 0], each), batch)


def test_one_program_serves_all_contents():
    """Offsets and lengths in arrays are data, not constants, so they cause no second compilation."""
    dense = jax.jit(chex.assert_max_traces(lambda mask: mask.dense(3, 3), n=1))
    for n in range(3):
        dense(masks.causal(jnp.int32(n)) & masks.lengths(jnp.array([n])))


def test_a_new_mask_is_a_subclass():
    @jax.tree_util.register_pytree_node_class
    class Even(masks.Mask):
        tree_flatten = lambda self: ((), None)
        tree_unflatten = classmethod(lambda cls, aux, children: cls())

        def tile(self, query_index, key_index):
            return jnp.broadcast_to(key_index % 2 == 0, (1, 1, query_index.shape[0], key_index.shape[0]))

    mask = Even() & masks.causal()
    assert np.asarray(mask.dense(3, 3)[0, 0]).astype(int).tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    assert functools.reduce(lambda a, b: a | b, [mask, mask]).key_range(0, 2) == (0, 2)


def test_at_positions():
    """Masks of positions are computed at the given ones, each example at its own; what is stored in order stays."""
    query, key = np.array([[4, 0], [2, 3]]), np.array([[0, 3, 1, 4]])
    band = masks.window(1) | ~masks.causal(2)
    got = np.asarray(band.at_positions(query, key).dense(2, 4))[:, 0]
    whole = np.asarray(band.dense(5, 5))[0, 0]
    np.testing.assert_array_equal(got, whole[query[..., None], key[0]])
    valid = np.array([[True, True, False, True], [True, False, True, True]])
    for stored in (
        masks.padding(valid),
        masks.lengths([1, 3]),
        masks.dense(valid[:, None]),
        masks.segments(query),
    ):
        assert stored.at_positions(query, key) is stored
    both = (masks.window(1) & masks.padding(valid)).at_positions(query, key).dense(2, 4)
    window = np.asarray(masks.window(1).dense(5, 5))[0, 0][query[..., None], key[0]]
    np.testing.assert_array_equal(np.asarray(both)[:, 0], window & valid[:, None])


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32"])
def test_positions_of_few_bits_or_none_below_zero(dtype, asarray):
    """Their differences wrapped around: a query saw the keys after it, and few of those in a wide window."""
    positions = asarray(np.arange(100, dtype=dtype)[None])
    for mask in (masks.causal(), masks.window(1), masks.window(299)):
        found = mask.at_positions(positions, positions).dense(100, 100)
        np.testing.assert_array_equal(found, mask.dense(100, 100))


def test_at_positions_of_a_mask_with_its_own_arrays():
    """Each example of the mask at the positions of that example."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Behind(masks.Mask):
        distance: jax.Array  # [B]

        def tile(self, query_index, key_index):
            behind = query_index[:, None] - key_index[None]
            return (behind[None] == self.distance[:, None, None])[:, None]

    got = Behind(jnp.array([1, 2])).at_positions(np.array([[3], [4]]), np.arange(5)[None]).dense(1, 5)
    np.testing.assert_array_equal(np.asarray(got)[:, 0, 0], [[0, 0, 1, 0, 0], [0, 0, 1, 0, 0]])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnTile(masks.Mask):
    """A user's mask of keys, from an array as it is."""

    array: jax.Array

    def tile(self, query_index, key_index):
        return self.array[..., key_index]


@pytest.mark.parametrize("change", [lambda m: m, lambda m: ~m, lambda m: m | ~m, lambda m: m & ~m])
def test_refuses_tiles_of_numbers(change):
    """The complements of 0 and 1 are -1 and -2, so ``~`` allowed all pairs."""
    mask = change(OwnTile(jnp.array([[[[0, 1, 0]]]])))
    with pytest.raises(ValueError, match=r"the tile of a mask must be Bool \[b, n, t, s\], got int32 \[1, 1, \d, 3\]"):
        mask.dense(2, 3)


def test_refuses_tiles_of_another_rank():
    """At positions they would be taken for a mask of other queries, such as those of another example."""
    own, positions = OwnTile(jnp.array([False, True, False])), jnp.broadcast_to(jnp.arange(3)[None], (3, 3))
    both = masks.causal() & own
    calls = [lambda x=x: both.at_positions(x, x) for x in (positions[:1], positions)]
    for call in (lambda: own.dense(2, 3), *calls):
        with pytest.raises(ValueError, match=r"the tile of a mask must be Bool \[b, n, t, s\], got bool \[3\]"):
            call()
