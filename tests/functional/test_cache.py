"""The key-value cache is a value: writing returns a new one with one position of each hypothesis set."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional.cache import empty_cache, write


@pytest.mark.parametrize("position", [np.full((2, 3), 2), np.array([[0, 3, 1], [2, 2, 0]])], ids=["equal", "own"])
def test_write_sets_one_position(position):
    cache = empty_cache(2, 3, 4, 1, 2, jnp.dtype("bfloat16"))
    assert cache.key.shape == cache.value.shape == (2, 3, 4, 1, 2)
    key, value = jnp.ones((2, 3, 1, 2)), jnp.full((2, 3, 1, 2), 2.0)
    written = jax.jit(write)(cache, key, value, jnp.asarray(position, jnp.int32))
    assert written.key.dtype == jnp.bfloat16
    expected = np.zeros((2, 3, 4, 1, 2))
    for sentence, hypothesis in np.ndindex(2, 3):
        expected[sentence, hypothesis, position[sentence, hypothesis]] = 1
    np.testing.assert_array_equal(np.asarray(written.key, np.float32), expected)
    np.testing.assert_array_equal(np.asarray(written.value, np.float32), 2 * expected)
    assert not np.asarray(cache.key, np.float32).any()


def test_write_keeps_what_was_written():
    """Each hypothesis writes its own values at positions in an order of its own; nothing is lost or swapped."""
    draw = np.random.default_rng(0)
    keys, values = draw.standard_normal((2, 4, 2, 3, 2, 5)).astype(np.float32)  # [T, B, K, N, H]
    order = np.stack([[draw.permutation(4) for _ in range(3)] for _ in range(2)])  # [B, K, T]
    cache = empty_cache(2, 3, 4, 2, 5, jnp.dtype("float32"))
    for t in range(4):
        cache = write(cache, jnp.asarray(keys[t]), jnp.asarray(values[t]), jnp.asarray(order[:, :, t], jnp.int32))
    for (b, k, t), position in np.ndenumerate(order):
        np.testing.assert_array_equal(cache.key[b, k, position], keys[t, b, k])
        np.testing.assert_array_equal(cache.value[b, k, position], values[t, b, k])
