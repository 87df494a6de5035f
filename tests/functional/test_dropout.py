"""Dropout bits are random enough, independent, and the same on every device and mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer import functional
from jaxformer.functional.dropout import flat_index, fold_in_name, hashed_bits, keep, mix32
from tests.contracts import numpy_dropout

COUNT = 1 << 18


def bits(seed=0, count=COUNT):
    return np.asarray(hashed_bits(jax.random.key(seed), jnp.arange(count, dtype=jnp.uint32)))


def chi_square(cells):
    """Returns how many standard deviations a table of counts is from uniform."""
    expected, freedom = cells.sum() / cells.size, cells.size - 1
    return (((cells - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def test_bits_are_the_documented_hash():
    """Two rounds of a published mixer, recomputed in Python integers: a saved run can be replayed elsewhere."""
    words = np.asarray(jax.random.key_data(jax.random.key(5)))
    expected = [numpy_dropout.hashed_bits(words, i) for i in range(50)]
    assert bits(5, 50).tolist() == expected
    raw = hashed_bits(jnp.asarray(words), jnp.arange(50, dtype=jnp.uint32))
    assert raw.tolist() == expected


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate(rate):
    """The dropped fraction is the rate within four standard deviations, and the mean is kept."""
    dropped = np.asarray(functional.dropout(jnp.ones(COUNT), rate=rate, key=jax.random.key(1)))
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / (1 - rate))}
    deviation = np.sqrt(rate * (1 - rate) / COUNT)
    assert abs((dropped == 0).mean() - rate) < 4 * deviation


def test_every_bit_is_fair():
    ones = np.array([(bits() >> i & 1).mean() for i in range(32)])
    assert abs(ones - 0.5).max() < 4.5 * 0.5 / np.sqrt(COUNT)


@pytest.mark.parametrize("distance", [1, 2, 64, 512, 4096])
def test_neighbors_are_independent(distance):
    """Chi-square of the top four bits of pairs of indices: along a row, and between rows of usual widths."""
    top = bits() >> 28
    cells = np.bincount(top[:-distance] * 16 + top[distance:], minlength=256)
    assert abs(chi_square(cells)) < 5


def test_bits_are_pairwise_independent():
    """All 496 pairs of bits of the same hash, by the correlation of their signs."""
    signs = 1.0 - 2.0 * (bits()[:, None] >> np.arange(32, dtype=np.uint32) & 1)
    correlation = signs.T @ signs / COUNT - np.eye(32)
    assert abs(correlation).max() < 5 / np.sqrt(COUNT)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (jax.random.key(0), jax.random.key(1)),
        (jax.random.fold_in(jax.random.key(0), 1), jax.random.fold_in(jax.random.key(0), 2)),
        (fold_in_name(jax.random.key(0), "attention"), fold_in_name(jax.random.key(0), "cross")),
        (jax.random.wrap_key_data(jnp.uint32([0, 7])), jax.random.wrap_key_data(jnp.uint32([7, 0]))),
    ],
    ids=["seeds", "steps", "sites", "swapped words"],
)
def test_keys_are_independent(left, right):
    index = jnp.arange(COUNT, dtype=jnp.uint32)
    top, other = (np.asarray(hashed_bits(key, index)) >> 28 for key in (left, right))
    assert abs(chi_square(np.bincount(top * 16 + other, minlength=256))) < 5


def test_many_small_keys_at_one_index():
    """For seeds 0, 1, 2, ..., bits of an index are fair: the first element is not always dropped."""
    keys = jax.random.wrap_key_data(jnp.stack([jnp.zeros(4096, jnp.uint32), jnp.arange(4096, dtype=jnp.uint32)], 1))
    for index in (0, 1, 77):
        result = np.asarray(jax.vmap(lambda key: hashed_bits(key, jnp.uint32(index)))(keys))  # noqa: B023
        assert abs(chi_square(np.bincount(result >> 28, minlength=16))) < 5
    kept = jax.vmap(lambda key: functional.dropout(jnp.ones(3), rate=0.01, key=key))(keys)
    assert np.asarray(kept[0]).all()


def test_a_name_folded_into_a_key():
    """Equal names give equal keys; without a key, the result is None."""
    assert fold_in_name(None, "attention") is None
    words = [jax.random.key_data(fold_in_name(jax.random.key(0), name)).tolist() for name in ("a", "b", "a")]
    assert words[0] == words[2] != words[1]


def test_same_under_jit_vmap_and_mesh():
    """Bits depend only on key and absolute index, not on compilation, mapping, or the layout of eight devices."""
    x, key = jnp.ones((16, 8, 4)), jax.random.key(3)
    drop = lambda x, key: functional.dropout(x, rate=0.5, key=key)
    plain = np.asarray(drop(x, key))
    np.testing.assert_array_equal(jax.jit(drop)(x, key), plain)
    keys = jax.random.split(key, 3)
    mapped = jax.vmap(drop, (None, 0))(x, keys)
    for got, one in zip(mapped, keys, strict=True):
        np.testing.assert_array_equal(got, drop(x, one))
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    for spec in (("data",), ("data", "model"), (None, "model", "data"), (("data", "model"), None, None)):
        placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
        got = jax.jit(drop, out_shardings=placed.sharding)(placed, key)
        assert got.sharding == placed.sharding
        np.testing.assert_array_equal(got, plain)


def test_the_gradient_has_the_same_mask():
    x, key = jnp.linspace(1.0, 2.0, 64), jax.random.key(2)
    slope = jax.grad(lambda x: functional.dropout(x, rate=0.25, key=key).sum())(x)
    np.testing.assert_allclose(slope * x, functional.dropout(x, rate=0.25, key=key), rtol=1e-6)


def test_identity_without_key_or_rate():
    x = jnp.ones(3)
    assert functional.dropout(x, rate=0.5, key=None) is x
    assert functional.dropout(x, rate=0.0, key=jax.random.key(0)) is x


def test_the_factor_of_narrow_numbers_is_not_rounded():
    """In bfloat16, 1 / 0.9 would be 1.109, and all kept values would be 0.16% too small."""
    x = jax.device_put(np.linspace(1, 2, 1000).astype(jnp.bfloat16))
    found, given = (np.asarray(y, np.float64) for y in (functional.dropout(x, rate=0.1, key=jax.random.key(0)), x))
    assert functional.dropout(x, rate=0.1, key=jax.random.key(0)).dtype == x.dtype
    np.testing.assert_allclose(found.sum() / given[found > 0].sum(), 1 / 0.9, rtol=4e-4)


@pytest.mark.parametrize("dims", [(1 << 20, 1 << 13), (3, 70_000, 5, 40_009), (2**32 - 1, 2**32 - 1), (7, 2**31, 2)])
def test_indices_beyond_32_bits(dims):
    """The two words are the index, and the bits those of the hash in Python integers; they do not repeat."""
    key, draw = jax.random.key(5), np.random.default_rng(0)
    indices = np.stack([draw.integers(0, size, 100) for size in dims])
    indices[:, 0], indices[:, 1] = 0, np.array(dims) - 1
    index = flat_index(dims, tuple(jnp.asarray(x.astype(np.uint32)) for x in indices))
    expected = [
        functools.reduce(lambda flat, x: flat * x[0] + int(x[1]), zip(dims, i, strict=True), 0) for i in indices.T
    ]
    assert index.low.tolist() == [x % 2**32 for x in expected]
    assert index.high.tolist() == [x >> 32 for x in expected]
    words = np.asarray(jax.random.key_data(key))
    assert hashed_bits(key, index).tolist() == [numpy_dropout.hashed_bits(words, x) for x in expected]


def test_large_arrays_do_not_repeat_bits():
    """The bits of the first 2**32 elements are those of a small array; an element 2**32 further has others."""
    dims, key, columns = (1 << 20, 1 << 13), jax.random.key(1), jnp.arange(1 << 13)
    row = lambda i: np.asarray(hashed_bits(key, flat_index(dims, (jnp.uint32(i), columns))))
    np.testing.assert_array_equal(row(1), bits(1)[1 << 13 : 2 << 13])
    for later in (1 << 19, (1 << 19) + 1):
        assert (row(later) != row(later - (1 << 19))).mean() > 0.999
        cells = np.bincount((row(later) >> 28) * 16 + (row(later - (1 << 19)) >> 28), minlength=256)
        assert abs(chi_square(cells)) < 5
    big = jax.ShapeDtypeStruct(dims, jnp.bfloat16)
    assert jax.eval_shape(lambda x: functional.dropout(x, rate=0.1, key=jax.random.key(0)), big).shape == dims


def test_tiny_rates_are_not_rounded_away():
    assert bool(keep(jax.random.key(0), 0.0, jnp.uint32(3)))
    threshold_one = np.asarray(keep(jax.random.key(0), 1 - 1e-12, jnp.arange(1000, dtype=jnp.uint32)))
    assert not threshold_one.any()


def test_mix32_is_one_to_one():
    """Different words have different hashes, and about half of the bits of two neighbors differ."""
    hashes = np.asarray(mix32(jnp.arange(1 << 16, dtype=jnp.uint32)))
    assert hashes[0] == 0
    assert len(np.unique(hashes)) == len(hashes)
    assert 15.5 < np.bitwise_count(hashes[1:] ^ hashes[:-1]).mean() < 16.5
