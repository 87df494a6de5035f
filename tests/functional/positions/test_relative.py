"""Relative keys and Transformer-XL against their formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional


def test_relative_keys_need_a_middle():
    with pytest.raises(ValueError, match=r"must be odd \(2 k \+ 1\), got 4"):
        functional.relative_keys(jnp.zeros((4, 8)))


def test_transformer_xl_is_its_four_terms():
    """q k + q r + u k + v r, scaled (Dai et al. 2019, 3.3), against sums over pairs."""
    draw = np.random.default_rng(5).standard_normal
    query, key, value = draw((3, 1, 4, 2, 4))
    kernel, u, v = draw((6, 2, 4)), draw((2, 4)), draw((2, 4))
    logits = np.zeros((2, 4, 4))
    for n, t, s in np.ndindex(2, 4, 4):
        angle = (t - s) * 10_000.0 ** (-np.arange(0, 6, 2) / 6)
        r = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(6) @ kernel[:, n]
        q, k = query[0, t, n], key[0, s, n]
        logits[n, t, s] = (q @ k + q @ r + u[n] @ k + v[n] @ r) / 2
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    cast = lambda x: jnp.asarray(x, jnp.float32)
    moved, bias = functional.transformer_xl(cast(query), cast(kernel), cast(u), cast(v))
    got = functional.attention(moved, cast(key), cast(value), bias=bias)
    np.testing.assert_allclose(got[0], np.einsum("nts,snj->tnj", weights, value[0]), atol=1e-5)
