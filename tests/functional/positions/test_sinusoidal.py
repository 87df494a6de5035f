"""Sinusoidal positions follow their formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional


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
    with pytest.raises(ValueError, match="dim must be even to pair sines with cosines, got 7"):
        functional.sinusoidal(jnp.arange(3), dim=7)


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
