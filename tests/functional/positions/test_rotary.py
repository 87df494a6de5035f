"""Rotary positions rotate pairs of features, and each scaling changes the intended frequencies."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from jaxformer.functional.positions.rotary import Frequencies


@pytest.mark.parametrize("pairs", ["halves", "neighbors"])
def test_rotary_rotates_pairs(pairs):
    """Each pair is a complex number, multiplied by e^(i omega t)."""
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 8))
    first, second = (x[..., :4], x[..., 4:]) if pairs == "halves" else (x[..., ::2], x[..., 1::2])
    positions = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 0, 1]])
    angle = positions[:, :, None, None] * 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    turned = (first + 1j * second) * np.exp(1j * angle)
    got = functional.rotary(jnp.asarray(x, jnp.float32), jnp.asarray(positions), pairs=pairs)
    parts = (got[..., :4], got[..., 4:]) if pairs == "halves" else (got[..., ::2], got[..., 1::2])
    np.testing.assert_allclose(parts[0], turned.real, atol=1e-5)
    np.testing.assert_allclose(parts[1], turned.imag, atol=1e-5)


@pytest.mark.parametrize("scaling", [None, functional.linear_scaling(4.0), functional.yarn_scaling(4.0, 32)])
def test_rotary_logits_depend_on_the_distance(scaling):
    query, key = jnp.asarray(np.random.default_rng(1).standard_normal((2, 1, 1, 1, 16)), jnp.float32)
    turn = lambda x, t: functional.rotary(x, jnp.array([t]), scaling=scaling)
    logits = [float(jnp.vdot(turn(query, t), turn(key, t - 5))) for t in (5, 30, 900)]
    np.testing.assert_allclose(logits, logits[0], atol=2e-3)
    assert abs(logits[0] - float(jnp.vdot(turn(query, 5), turn(key, 2)))) > 1e-2


def frequencies(scaling, dim=8, base=10_000.0):
    unscaled = Frequencies(base ** (-np.arange(0, dim, 2) / dim))
    return unscaled.radians, scaling(unscaled, base)


def test_rotary_scalings():
    """At factor 4, the fastest, the slowest and the intermediate frequencies of each scaling."""
    plain, linear = frequencies(functional.linear_scaling(4.0))
    np.testing.assert_allclose(linear.radians, plain / 4)
    _, ntk = frequencies(functional.ntk_scaling(4.0))
    np.testing.assert_allclose(ntk.radians[[0, -1]], [plain[0], plain[-1] / 4])
    _, yarn = frequencies(functional.yarn_scaling(4.0, 2048), dim=64)
    plain64, _ = frequencies(functional.linear_scaling(4.0), dim=64)
    turns = 2048 * plain64 / (2 * np.pi)
    np.testing.assert_allclose(yarn.radians[turns > 40], plain64[turns > 40])
    np.testing.assert_allclose(yarn.radians[turns < 0.8], plain64[turns < 0.8] / 4)
    assert (np.diff(yarn.radians) < 0).all()
    assert yarn.amplitude == pytest.approx(0.1 * np.log(4) + 1)
    turned = functional.rotary(jnp.ones((1, 1, 1, 64)), jnp.array([3]), scaling=functional.yarn_scaling(4.0, 2048))
    np.testing.assert_allclose(jnp.linalg.norm(turned), 8 * yarn.amplitude, rtol=1e-5)
    _, llama = frequencies(functional.llama3_scaling(8.0, 8192), dim=128, base=500_000.0)
    plain128, _ = frequencies(functional.linear_scaling(1.0), dim=128, base=500_000.0)
    wavelength = 2 * np.pi / plain128
    np.testing.assert_allclose(llama.radians[wavelength < 8192 / 4], plain128[wavelength < 8192 / 4])
    np.testing.assert_allclose(llama.radians[wavelength > 8192], plain128[wavelength > 8192] / 8)
    smooth = (8192 / wavelength - 1) / 3
    between = (smooth > 0) & (smooth < 1)
    want = (1 - smooth) * plain128 / 8 + smooth * plain128
    np.testing.assert_allclose(llama.radians[between], want[between])
    assert between.any()


def test_the_default_positions_may_have_symbolic_length():
    (length,) = jax.export.symbolic_shape("s")
    shape = jax.ShapeDtypeStruct((1, length, 2, 4), jnp.float32)
    x = np.random.default_rng(1).standard_normal((1, 5, 2, 4)).astype(np.float32)
    exported = jax.export.export(jax.jit(functional.rotary))(shape)
    np.testing.assert_allclose(exported.call(x), functional.rotary(jnp.asarray(x)), atol=1e-5)
