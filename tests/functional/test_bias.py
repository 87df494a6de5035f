"""Biases of a query that continues a cached sequence."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from tests.modules.small import quick


@pytest.mark.parametrize("name", ["alibi", "t5", "relative"])
def test_bias_with_a_cache(name):
    """Row t of the full result is the one query at position t against the keys so far, with ``bias.at(t)``."""
    query, key, value = jnp.asarray(np.random.default_rng(8).standard_normal((3, 2, 6, 4, 8)), jnp.float32)
    bias = {
        "alibi": functional.alibi(4),
        "t5": functional.t5_bias(jnp.asarray(np.random.default_rng(1).standard_normal((8, 4)), jnp.float32)),
        "relative": functional.relative_keys(
            jnp.asarray(np.random.default_rng(1).standard_normal((7, 8)), jnp.float32)
        ),
    }[name]
    full = functional.attention(query, key, value, mask=masks.causal(), bias=bias)
    weights = functional.attention_weights(query, key, mask=masks.causal(), bias=bias, rows=[5, 2])
    attend = quick(functional.attention, static_argnames="implementation")
    for t, implementation in ((0, "blockwise"), (3, "reference"), (5, "blockwise")):
        row = attend(
            query[:, t : t + 1], key, value, mask=masks.causal(t), bias=bias.at(t), implementation=implementation
        )
        np.testing.assert_allclose(row[:, 0], full[:, t], atol=1e-5)
    np.testing.assert_allclose(jnp.einsum("bnts,bsnj->btnj", weights, value), full[:, jnp.array([5, 2])], atol=1e-5)
