"""The best scores and their indices, with ties, infinities and every size, as from `argmax` and `top_k`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.decoding.api import BLOCK, first_highest, top_scores
from tests.selection import first


def scores_with_ties(size):
    draw = np.random.default_rng(size)
    found = draw.integers(0, max(2, size // 50), (40, size)).astype(np.float32)
    found[draw.random(found.shape) < 0.3] = -np.inf
    found[:2] = -np.inf
    found[2:4] = 1.0
    return jnp.asarray(found)


@pytest.mark.full
@pytest.mark.parametrize("size", first([1, 5, 40 * BLOCK, 40 * BLOCK + 1, 41 * BLOCK - 1], 1, 40 * BLOCK + 1))
def test_best_equals_argmax_and_top_k(size):
    scores = scores_with_ties(size)
    np.testing.assert_array_equal(first_highest(scores), scores.argmax(-1))
    for count in sorted({1, min(8, size), min(300, size)}):
        found, expected = (f(scores.reshape(4, 10, size), count) for f in (top_scores, jax.lax.top_k))
        chex.assert_trees_all_equal([*found], [*expected])


def test_a_score_that_is_nan_gives_an_index_in_range():
    scores = jnp.array([[1.0, jnp.nan, 2.0], [jnp.nan] * 3])
    assert set(first_highest(scores).tolist()) <= {0, 1, 2}
