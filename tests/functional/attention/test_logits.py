"""Soft caps, and normalized queries and keys; the contract of biases has their values inside attention."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional


def test_equal_caps_share_a_program():
    assert functional.soft_cap(3.0) == functional.soft_cap(3.0)
    assert hash(functional.soft_cap(3.0)) == hash(functional.soft_cap(3.0))


@pytest.mark.parametrize("cap", [0.0, -1.0])
def test_soft_cap_refuses_a_cap_that_is_not_positive(cap):
    with pytest.raises(ValueError, match=f"cap must be above 0, got {cap}"):
        functional.soft_cap(cap)


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
