"""The key-value cache is a value: writing returns a new one with one position set."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional.cache import empty_cache, write


def test_write_sets_one_position():
    cache = empty_cache(2, 3, 4, 1, 2, jnp.dtype("bfloat16"))
    assert cache.key.shape == cache.value.shape == (2, 3, 4, 1, 2)
    key, value = jnp.ones((2, 3, 1, 2)), jnp.full((2, 3, 1, 2), 2.0)
    written = jax.jit(write)(cache, key, value, jnp.int32(2))
    assert written.key.dtype == jnp.bfloat16
    expected = np.zeros((2, 3, 4, 1, 2))
    expected[:, :, 2] = 1
    np.testing.assert_array_equal(np.asarray(written.key, np.float32), expected)
    np.testing.assert_array_equal(np.asarray(written.value, np.float32), 2 * expected)
    assert not np.asarray(cache.key, np.float32).any()
