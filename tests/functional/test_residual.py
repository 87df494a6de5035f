"""The order of norm, sublayer and sum."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional


def test_orders():
    x, double, add = jnp.array([1.0, 2.0]), lambda x: 2 * x, lambda x: x + 10
    assert functional.residual(x, double).tolist() == [3, 6]
    assert functional.pre_norm(x, double, add).tolist() == [1 + 22, 2 + 24]
    assert functional.post_norm(x, double, add).tolist() == [13, 16]


def test_the_skip_path_has_slope_one():
    jacobian = jax.jacobian(lambda x: functional.residual(x, lambda y: jnp.sin(3 * y)))(jnp.zeros(3))
    np.testing.assert_allclose(jacobian, 4 * np.eye(3), rtol=1e-6)
    np.testing.assert_array_equal(
        jax.jacobian(lambda x: functional.residual(x, jnp.zeros_like))(jnp.ones(3)), np.eye(3)
    )
