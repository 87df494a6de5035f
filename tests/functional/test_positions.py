"""Position vectors: the formula in float64, and the table's bounds."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from jaxformer.functional.positions import check_positions


@pytest.mark.parametrize(("dim", "base"), [(2, 10_000.0), (8, 10_000.0), (512, 10_000.0), (16, 100.0)])
def test_sinusoidal_formula(dim, base):
    positions = np.array([[0, 1, 2], [100, 511, 2000]])
    got = functional.sinusoidal(jnp.asarray(positions), dim=dim, base=base)
    assert got.shape == (2, 3, dim)
    assert got.dtype == jnp.float32
    for k in range(dim // 2):
        angle = positions * base ** (-2 * k / dim)
        np.testing.assert_allclose(got[..., 2 * k], np.sin(angle), atol=2e-4)
        np.testing.assert_allclose(got[..., 2 * k + 1], np.cos(angle), atol=2e-4)


def test_sinusoidal_refuses_an_odd_width():
    with pytest.raises(ValueError, match="dim must be even, got 7"):
        functional.sinusoidal(jnp.arange(3), dim=7)


def test_learned_looks_rows_up():
    table = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(functional.learned(table, jnp.array([[3, 0]])), [[[9, 10, 11], [0, 1, 2]]])


def test_a_table_has_an_end():
    check_positions(4, 4)
    with pytest.raises(ValueError, match=r"length 5 has no learned position beyond 4"):
        check_positions(5, 4)
