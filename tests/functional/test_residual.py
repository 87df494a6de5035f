"""The order of norm, sublayer and sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional


def test_orders():
    x, double, add = jnp.array([1.0, 2.0]), lambda x: 2 * x, lambda x: x + 10
    assert functional.residual(x, double).tolist() == [3, 6]
    assert functional.pre_norm(x, double, add).tolist() == [1 + 22, 2 + 24]
    assert functional.post_norm(x, double, add).tolist() == [13, 16]


def test_the_skip_path_has_derivative_one():
    jacobian = jax.jacobian(lambda x: functional.residual(x, lambda y: jnp.sin(3 * y)))(jnp.zeros(3))
    np.testing.assert_allclose(jacobian, 4 * np.eye(3), rtol=1e-6)
    np.testing.assert_array_equal(
        jax.jacobian(lambda x: functional.residual(x, jnp.zeros_like))(jnp.ones(3)), np.eye(3)
    )


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


def test_deep_norm_refuses_no_layers():
    with pytest.raises(ValueError, match="not both 0, got 0 and 0"):
        functional.deep_norm_gains(0, 0)
