"""The distributions that parameters are drawn from."""

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.modules.initializers import normal, uniform


def test_initializers():
    """Uniform and normal by their quantiles, for many keys and lengths; never infinite; keys and shapes matter."""
    draws = np.asarray(jax.vmap(lambda key: uniform(key, (64, 64)))(jax.random.split(jax.random.key(0), 16))).reshape(
        -1
    )
    assert abs(draws).max() < 1
    quantiles = np.linspace(0.01, 0.99, 99)
    np.testing.assert_allclose(np.quantile(draws, quantiles), 2 * quantiles - 1, atol=0.01)
    bell = np.asarray(normal(jax.random.key(1), (256, 256), deviation=0.5)).reshape(-1)
    expected = [0.5 * NormalDist().inv_cdf(q) for q in quantiles]
    np.testing.assert_allclose(np.quantile(bell, quantiles), expected, atol=0.02)
    ends = jnp.asarray([0, 2**32 - 1], jnp.uint32)
    assert np.isfinite(jax.lax.erf_inv(((ends >> 9).astype(jnp.float32) + 0.5) * 2**-22 - 1)).all()
    columns = np.asarray(uniform(jax.random.key(2), (2048, 2)))
    assert abs(np.corrcoef(columns.T)[0, 1]) < 4 / np.sqrt(2048)
