"""Position vectors: sinusoids by their formula, rows of tables, resized tables, and plain numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from jaxformer import functional
from jaxformer.functional.positions.vectors import check_given_positions, check_positions, first_positions
from tests.modules.small import int32, quick
from tests.selection import first


@pytest.mark.parametrize(("dim", "base"), [(2, 10_000.0), (8, 10_000.0), (512, 10_000.0), (16, 100.0)])
def test_sinusoidal_formula(dim, base):
    positions = np.array([[0, 1, 2], [100, 511, 2000]])
    got = quick(lambda x: functional.sinusoidal(x, dim=dim, base=base))(int32(positions))
    assert got.shape == (2, 3, dim)
    assert got.dtype == jnp.float32
    for k in range(dim // 2):
        angle = positions * base ** (-2 * k / dim)
        np.testing.assert_allclose(np.asarray(got)[..., 2 * k], np.sin(angle), atol=2e-4)
        np.testing.assert_allclose(np.asarray(got)[..., 2 * k + 1], np.cos(angle), atol=2e-4)


def test_sinusoidal_of_known_positions_is_a_constant():
    """NumPy positions are computed at trace time in float64: the program has no sine, and each value is exact."""
    positions = np.array([0, 3, 70_000])
    got = functional.sinusoidal(positions, dim=6)
    angle = positions[:, None] * 10_000.0 ** (-np.arange(0, 6, 2) / 6)
    np.testing.assert_allclose(got[:, ::2], np.sin(angle), atol=1e-7)
    program = lambda make_positions: str(
        jax.make_jaxpr(lambda x: x + functional.sinusoidal(make_positions(3), dim=4))(jnp.ones((3, 4)))
    )
    assert " sin " in program(jnp.arange)
    assert " sin " not in program(np.arange)


def test_layouts_hold_the_same_features():
    """All sines before all cosines, as other toolkits store them."""
    whole = functional.sinusoidal(np.arange(5), dim=6)
    halves = functional.sinusoidal(np.arange(5), dim=6, layout="halves")
    np.testing.assert_array_equal(halves, whole[:, np.array([0, 2, 4, 1, 3, 5])])


def test_fairseq_has_other_frequencies():
    """The last one is exactly 1 / base: sines at frequency base ** (-k / (D/2 - 1)), then cosines."""
    got = functional.sinusoidal(np.arange(5), dim=6, layout="fairseq")
    angle = np.arange(5)[:, None] * np.array([1, 10_000.0**-0.5, 1 / 10_000])
    np.testing.assert_allclose(got, np.concatenate([np.sin(angle), np.cos(angle)], 1), atol=1e-7)
    assert np.isfinite(functional.sinusoidal(np.arange(5), dim=2, layout="fairseq")).all()


def test_positions_with_rows_are_not_refused():
    """From the offset before 0 to the end of the table; the values of traced ones are unknown."""
    check_positions(4, 4)
    check_given_positions(jnp.array([[-2, 3]]), 2, 4)
    check_given_positions(np.zeros((1, 0), int), 2, 4)
    assert jax.jit(functional.learned)(jnp.ones((4, 3)), jnp.array([0, 4])).shape == (2, 3)


@pytest.mark.parametrize("known", [True, False])
def test_each_sequence_has_its_own_length(known):
    """t / (N - 1) row by row, also where the lengths are values of the program; one token alone is at 0."""
    lengths, positions = np.array([[4], [10], [1]]), np.broadcast_to(np.arange(4), (3, 4))
    run = lambda n: functional.normalized_positions(positions, length=n, dim=2)
    got = run(lengths) if known else jax.jit(run)(lengths)
    assert (got.shape, got.dtype) == ((3, 4, 2), jnp.float32)
    np.testing.assert_allclose(got[0], np.repeat(np.arange(4) / 3, 2).reshape(4, 2), rtol=1e-6)
    np.testing.assert_allclose(got[1, :, 1], np.arange(4) / 9, rtol=1e-6)
    assert got[2, 0].tolist() == [0, 0]


@pytest.mark.parametrize(("length", "constant"), [(0, True), (5, True), (8, True), (9, False)])
def test_a_known_length(length, constant):
    """A constant of the program, unless it is long."""
    positions = first_positions(length, most=8)
    assert isinstance(positions, np.ndarray if constant else jax.Array)
    np.testing.assert_array_equal(positions, range(length))


@pytest.mark.parametrize(("constraints", "size"), [(["s <= 6"], 8), (["s <= 8"], 8), (["s <= 9"], "s"), ([], "s")])
def test_a_symbol(constraints, size):
    """A constant for all lengths up to the bound, if that is not too many."""
    (length,) = jax.export.symbolic_shape("s", constraints=constraints)
    found = []

    def run(x):
        positions = first_positions(x.shape[0], most=8)
        found.append((type(positions) is np.ndarray, str(positions.shape[0])))
        return positions[: x.shape[0]] if isinstance(size, str) else x

    jax.export.export(jax.jit(run))(jax.ShapeDtypeStruct((length,), np.float32))
    assert found == [(size == 8, str(size))]


TABLE = jnp.asarray(np.random.default_rng(2).standard_normal((5, 3)), jnp.float32)


@pytest.mark.full
def test_resize_interpolate_keeps_ends_and_lines():
    longer = functional.resize_positions(TABLE, 9, method="interpolate")
    np.testing.assert_allclose(longer[::2], TABLE, atol=1e-6)
    np.testing.assert_allclose(longer[1::2], (TABLE[1:] + TABLE[:-1]) / 2, atol=1e-6)
    shorter = functional.resize_positions(TABLE, 3, method="interpolate")
    np.testing.assert_allclose(shorter, TABLE[::2], atol=1e-6)
    np.testing.assert_array_equal(functional.resize_positions(TABLE, 5, method="interpolate"), TABLE)
    one = functional.resize_positions(TABLE[:1], 4, method="interpolate")
    np.testing.assert_allclose(one, jnp.broadcast_to(TABLE[:1], (4, 3)))


@pytest.mark.full
@pytest.mark.parametrize("num_class_rows", first([0, 1, 2], 1))
@pytest.mark.parametrize("new_grid", first([(7, 5), (2, 2), (3, 4), (1, 6)], (7, 5), (1, 6)))
def test_a_grid_is_interpolated_as_by_scipy(new_grid, num_class_rows):
    """Bilinear with aligned corners; the class rows, which belong to no patch, are the same bits."""
    rng = np.random.default_rng(0)
    grid, top = rng.standard_normal((3, 4, 5)).astype(np.float32), rng.standard_normal((num_class_rows, 5))
    table = jnp.concatenate([jnp.asarray(top, jnp.float32), jnp.asarray(grid).reshape(12, 5)])
    got = functional.resize_grid_positions(table, (3, 4), new_grid, num_class_rows=num_class_rows)
    np.testing.assert_array_equal(got[:num_class_rows], table[:num_class_rows])
    points = np.meshgrid(*(np.linspace(0, old - 1, new) for old, new in zip((3, 4), new_grid, strict=True)))
    expected = RegularGridInterpolator((np.arange(3), np.arange(4)), grid)(np.stack(points, -1)).swapaxes(0, 1)
    np.testing.assert_allclose(got[num_class_rows:], expected.reshape(-1, 5), atol=1e-6)


def keys_cubic(values, position):
    """The value at a position between samples, by the cubic through its neighbors; the last sample is repeated."""
    total = 0.0
    for index in range(int(np.floor(position)) - 1, int(np.floor(position)) + 3):
        x, a = abs(position - index), -0.75
        weight = (a + 2) * x**3 - (a + 3) * x**2 + 1 if x <= 1 else a * (x**3 - 5 * x**2 + 8 * x - 4)
        total += weight * values[min(max(index, 0), len(values) - 1)]
    return total


@pytest.mark.parametrize("new_grid", first([(7, 5), (2, 2), (3, 4), (1, 9)], (7, 5), (2, 2)))
def test_a_grid_by_cubics(new_grid):
    """Patches keep their share of the image; the same grid is the same table."""
    table = np.random.default_rng(0).standard_normal((1 + 12, 2)).astype(np.float32)
    got = functional.resize_grid_positions(jnp.asarray(table), (3, 4), new_grid, num_class_rows=1, method="bicubic")
    np.testing.assert_array_equal(got[0], table[0])
    grid = table[1:].reshape(3, 4, 2)
    at = [[(i + 0.5) * old / new - 0.5 for i in range(new)] for old, new in zip((3, 4), new_grid, strict=True)]
    expected = [[keys_cubic([keys_cubic(row, c) for row in grid], r) for c in at[1]] for r in at[0]]
    np.testing.assert_allclose(got[1:], np.array(expected).reshape(-1, 2), atol=1e-5)
    if new_grid == (3, 4):
        np.testing.assert_array_equal(got, table)


@pytest.mark.full
def test_a_grid_in_bfloat16_is_rounded_once():
    table = TABLE[:4].astype(jnp.bfloat16)
    got = functional.resize_grid_positions(table, (2, 2), (3, 3))
    exact = functional.resize_grid_positions(table.astype(jnp.float32), (2, 2), (3, 3))
    np.testing.assert_array_equal(got, exact.astype(jnp.bfloat16))
