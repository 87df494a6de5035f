"""The parts that implementations share: the masked softmax, and a scale that is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from tests.contracts.attention import arrays


def test_masked_softmax_of_an_empty_row_has_no_slope():
    logits = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mask = jnp.array([[True, False, True], [False, False, False]])
    weights, pull = jax.vjp(lambda x: functional.masked_softmax(x, mask), logits)
    np.testing.assert_allclose(weights, [[1 / (1 + np.e**2), 0, 1 / (1 + np.e**-2)], [0, 0, 0]], rtol=1e-6)
    (slope,) = pull(jnp.array([[1.0, 9.0, 0.0], [1.0, 2.0, jnp.inf]]))
    np.testing.assert_allclose(slope[0, 1], 0)
    np.testing.assert_array_equal(slope[1], 0)


@pytest.mark.parametrize("implementation", ["reference", "blockwise", "xla"])
def test_a_traced_scale(implementation):
    """A traced scale may be learned; a concrete array is a number."""
    query, key, value, _ = arrays()
    options = {"mask": masks.causal(1), "implementation": implementation}

    def loss(query, scale):
        return jnp.sin(functional.attention(query, key, value, scale=scale, **options)).sum()

    by_query, by_scale = jax.jit(jax.grad(loss, (0, 1)))(query, jnp.float32(0.3))
    np.testing.assert_allclose(by_query, jax.grad(loss)(query, 0.3), atol=1e-5)
    np.testing.assert_allclose(by_query, jax.grad(loss)(query, jnp.float32(0.3)), atol=1e-5)
    np.testing.assert_allclose(by_scale, (loss(query, 0.31) - loss(query, 0.29)) / 0.02, rtol=2e-2)
