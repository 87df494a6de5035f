"""Normalization agrees with NumPy in both forms; the order of norm, sublayer and sum."""

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


def test_qk_norm():
    """The root mean square of each head is 1 before scaling; keys may have their own scale."""
    query, key = (jnp.asarray(np.random.default_rng(i).standard_normal((2, 3, 4, 8)), jnp.float32) for i in range(2))
    scale, key_scale = jnp.arange(1.0, 9), jnp.full(8, 0.5)
    normalize = lambda x: x / np.sqrt(np.square(x).mean(-1, keepdims=True))
    got = functional.qk_norm(query, key, scale=scale, key_scale=key_scale, epsilon=0.0)
    np.testing.assert_allclose(got[0], normalize(np.asarray(query)) * np.arange(1.0, 9), rtol=1e-5)
    np.testing.assert_allclose(got[1], normalize(np.asarray(key)) * 0.5, rtol=1e-5)
    shared = functional.qk_norm(query, key, scale=scale)
    np.testing.assert_array_equal(shared[1], functional.qk_norm(key, key, scale=scale)[0])


def test_sandwich_and_deep_norm():
    x, double, add, negate = jnp.array([1.0, 2.0]), lambda x: 2 * x, lambda x: x + 10, lambda x: -x
    assert functional.sandwich_norm(x, double, (add, negate)).tolist() == [1 - 22, 2 - 24]
    assert functional.deep_norm(3.0)(x, double, add).tolist() == [3 + 2 + 10, 6 + 4 + 10]


@pytest.mark.parametrize(
    ("depths", "encoder", "decoder"),
    [
        ((12, 0), (24**0.25, 96**-0.25), (24**0.25, 96**-0.25)),
        ((0, 50), (100**0.25, 400**-0.25), (100**0.25, 400**-0.25)),
        ((18, 6), (0.81 * (18**4 * 6) ** 0.0625, 0.87 * (18**4 * 6) ** -0.0625), (18**0.25, 72**-0.25)),
    ],
)
def test_deep_norm_gains(depths, encoder, decoder):
    """Table 2 of the paper for encoder-only, decoder-only and encoder-decoder models."""
    gains = functional.deep_norm_gains(*depths)
    np.testing.assert_allclose(gains, (encoder, decoder), rtol=1e-12)


def test_deep_norm_keeps_the_input_at_depth():
    """After 200 layers of random sublayers post-norm has lost its input, and deep norm has not."""

    def correlation(arrange):
        x = start = jnp.asarray(np.random.default_rng(0).standard_normal((1, 256)), jnp.float32)
        norm = lambda x: functional.layer_norm(x, jnp.ones(256))
        for i in range(200):
            noise = jnp.asarray(np.random.default_rng(i + 1).standard_normal((1, 256)), jnp.float32)
            x = arrange(x, lambda x: noise, norm)  # noqa: B023
        return float(jnp.corrcoef(x[0], start[0])[0, 1])

    assert abs(correlation(functional.post_norm)) < 0.2
    assert correlation(functional.deep_norm(200.0**0.75)) > 0.9
