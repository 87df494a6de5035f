"""Normalization agrees with NumPy in both forms, and its gradient is finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((2, 3, 8)) * 3 + 5
SCALE, SHIFT = DRAW.standard_normal((2, 8))


def published(x, form, epsilon):
    mean, deviation = x.mean(-1, keepdims=True), x.std(-1, keepdims=True)
    bottom = deviation + epsilon if form == "deviation" else np.sqrt(deviation**2 + epsilon)
    return (x - mean) / bottom


def single(*xs):
    return tuple(jnp.asarray(x, jnp.float32) for x in xs)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-1])
@pytest.mark.parametrize("form", ["variance", "deviation"])
def test_layer_norm_forms(form, epsilon):
    x, scale, shift = single(X, SCALE, SHIFT)
    got = functional.layer_norm(x, scale, shift, epsilon=epsilon, form=form)
    np.testing.assert_allclose(got, published(X, form, epsilon) * SCALE + SHIFT, atol=1e-5)
    unshifted = functional.layer_norm(x, scale, epsilon=epsilon, form=form)
    np.testing.assert_allclose(unshifted, published(X, form, epsilon) * SCALE, atol=1e-5)


@pytest.mark.parametrize("form", ["variance", "deviation"])
def test_layer_norm_gradient_is_a_finite_difference(form):
    x, weights = X[0, 0], DRAW.standard_normal(8)
    loss = lambda x: np.sum(published(x, form, 0.01) * weights)
    slope = jax.grad(
        lambda x: jnp.sum(functional.layer_norm(x, jnp.ones(8), epsilon=0.01, form=form) * single(weights)[0])
    )(single(x)[0])
    expected = [(loss(x + step) - loss(x - step)) / 2e-6 for step in 1e-6 * np.eye(8)]
    np.testing.assert_allclose(slope, expected, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("form", ["variance", "deviation"])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e4])
def test_constant_token(form, value):
    """A token without variation becomes the shift, and its gradient is finite (a bare square root gives NaN)."""
    x = jnp.full((1, 7), value)
    shift = jnp.arange(7.0)
    norm = lambda x: functional.layer_norm(x, jnp.ones(7), shift, epsilon=1e-5, form=form)
    np.testing.assert_allclose(norm(x)[0], shift, atol=0.2 if value == -1e4 else 1e-2)
    assert np.isfinite(jax.jacobian(norm)(x)).all()


def test_rms_norm():
    x, scale = single(X, SCALE)
    expected = SCALE * X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(functional.rms_norm(x, scale), expected, atol=1e-5)
    assert np.isfinite(jax.grad(lambda x: functional.rms_norm(x, scale).sum())(jnp.zeros((2, 8)))).all()


@pytest.mark.parametrize("norm", [functional.layer_norm, functional.rms_norm])
def test_statistics_are_float32(norm):
    """bfloat16 in and out, but no bfloat16 sums: the result is the exact one, rounded once."""
    x = single(X)[0].astype(jnp.bfloat16)
    got = norm(x, jnp.ones(8))
    assert got.dtype == jnp.bfloat16
    exact = norm(x.astype(jnp.float32), jnp.ones(8))
    np.testing.assert_array_equal(got, exact.astype(jnp.bfloat16))


def test_invariances():
    """Layer norm ignores a common shift and scale of the features; RMS norm a scale only."""
    x, ones = single(X)[0], jnp.ones(8)
    plain = functional.layer_norm(x, ones, epsilon=1e-9)
    np.testing.assert_allclose(functional.layer_norm(3 * x + 7, ones, epsilon=1e-9), plain, atol=1e-4)
    np.testing.assert_allclose(
        functional.rms_norm(4 * x, ones, epsilon=1e-9), functional.rms_norm(x, ones, epsilon=1e-9), atol=1e-5
    )


def test_unknown_form():
    with pytest.raises(ValueError, match="form must be 'variance' or 'deviation', got 'median'"):
        getattr(functional.layer_norm, "__wrapped__", functional.layer_norm)(
            jnp.ones((1, 4)), jnp.ones(4), form="median"
        )


@pytest.mark.parametrize("norm", [functional.layer_norm, functional.rms_norm])
def test_a_scale_of_another_shape_is_refused(norm):
    with pytest.raises(ValueError, match=r"scale must have shape \[D\] = \[8\], got \[2, 4\]"):
        getattr(norm, "__wrapped__", norm)(jnp.ones((3, 8)), jnp.ones((2, 4)))
