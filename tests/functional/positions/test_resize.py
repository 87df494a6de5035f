"""Tables of positions, shortened and lengthened."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from jaxformer import functional
from tests.selection import first

TABLE = jnp.asarray(np.random.default_rng(2).standard_normal((5, 3)), jnp.float32)


def test_resize_truncate_and_extend_leave_short_inputs_alone():
    resize = functional.resize_positions
    np.testing.assert_array_equal(resize(TABLE, 3, method="truncate"), TABLE[:3])
    longer = resize(TABLE, 8, method="extend")
    np.testing.assert_array_equal(longer[:5], TABLE)
    assert not np.asarray(longer[5:]).any()
    drawn = resize(TABLE, 4000, method="extend", key=jax.random.key(0))
    np.testing.assert_array_equal(drawn[:5], TABLE)
    assert float(drawn[5:].std()) == pytest.approx(float(TABLE.std()), rel=0.05)


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


@pytest.mark.parametrize(("length", "method"), [(6, "truncate"), (4, "extend"), (0, "interpolate")])
def test_resize_refuses_the_wrong_direction(length, method):
    with pytest.raises(ValueError, match=f"cannot {method} a table of 5 positions to {length}"):
        functional.resize_positions(TABLE, length, method=method)


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


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ((2, 2), {}, "2 x 2 patches and 0 class rows must have 4 rows, got 5"),
        ((5, 1), {"num_class_rows": 1}, "5 x 1 patches and 1 class rows must have 6 rows, got 5"),
        ((6, 1), {"num_class_rows": -1}, "num_class_rows must be at least 0, got -1"),
        ((5, 0), {}, r"at least 1 x 1 patches, got \(5, 0\)"),
        ((5, 1), {"method": "nearest"}, "method must be bilinear or bicubic, got 'nearest'"),
    ],
)
def test_a_table_of_another_grid_is_refused(grid, options, message):
    unchecked = getattr(functional.resize_grid_positions, "__wrapped__", functional.resize_grid_positions)
    with pytest.raises(ValueError, match=message):
        unchecked(TABLE, grid, (2, 2), **options)
