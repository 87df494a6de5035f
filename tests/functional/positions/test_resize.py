"""Tables of positions, shortened and lengthened."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from jaxformer import functional

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


@pytest.mark.parametrize("num_class_rows", [0, 1, 2])
@pytest.mark.parametrize("new_grid", [(7, 5), (2, 2), (3, 4), (1, 6)])
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
    ],
)
def test_a_table_of_another_grid_is_refused(grid, options, message):
    with pytest.raises(ValueError, match=message):
        functional.resize_grid_positions(TABLE, grid, (2, 2), **options)
