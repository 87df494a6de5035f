"""Pooling follows its definition, in one dimension and in two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from tests.modules.small import normal, quick

POOLS = {functional.max_pool: np.max, functional.average_pool: np.mean}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("shape", "size", "stride"), [((2, 7, 3), 2, None), ((2, 7, 6, 3), 3, 2), ((1, 4, 4, 2), 4, 1)]
)
def test_windows(pool, shape, size, stride):
    x, dims = normal(*shape), len(shape) - 2
    found = quick(lambda x: pool(x, size, stride=stride))(x)
    step = stride or size
    assert found.shape[1:-1] == tuple((n - size) // step + 1 for n in shape[1:-1])
    for place in np.ndindex(*found.shape[1:-1]):
        window = np.asarray(x)[(slice(None), *(slice(p * step, p * step + size) for p in place))]
        expected = POOLS[pool](window, tuple(range(1, dims + 1)))
        np.testing.assert_allclose(found[(slice(None), *place)], expected, atol=1e-6)


def test_gradients_reach_the_maximum_and_every_part_of_a_mean():
    x = jnp.array([1.0, 3.0, 2.0, 5.0]).reshape(1, 4, 1)
    slope = lambda pool: quick(jax.grad(lambda x: pool(x, 2).sum()))(x).ravel().tolist()
    assert slope(functional.max_pool) == [0, 1, 0, 1]
    assert slope(functional.average_pool) == [0.5] * 4


def test_the_sum_of_a_mean_is_float32():
    x = jnp.ones((1, 4096, 1), jnp.bfloat16)
    found = functional.average_pool(x, 4096)
    assert (found.dtype, float(found[0, 0, 0])) == (jnp.bfloat16, 1)
    assert functional.max_pool(x, 2).dtype == jnp.bfloat16


@pytest.mark.parametrize(("size", "stride"), [(0, None), (4, None), (2, 0)])
def test_refusals(size, stride):
    for pool in POOLS:
        with pytest.raises(
            ValueError, match=f"a window of 1 to 3 positions .*, got {size} by {size if stride is None else 0}"
        ):
            pool(jnp.ones((1, 3, 5, 2)), size, stride=stride)
