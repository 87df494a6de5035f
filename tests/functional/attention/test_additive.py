"""Attention with any similarity agrees with sums over pairs in NumPy, and keeps the contract of empty rows."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks

DRAW = np.random.default_rng(4)
B, T, S, D, E, A, J = 2, 3, 5, 4, 6, 7, 2
QUERY, KEY, VALUE = (DRAW.standard_normal(shape) for shape in ((B, T, D), (B, S, E), (B, S, J)))
W_QUERY, W_KEY, V, W = (DRAW.standard_normal(shape) for shape in ((D, A), (E, A), (A,), (D, E)))
ARRAYS = [jnp.asarray(x, jnp.float32) for x in (QUERY, KEY, VALUE)]
WEIGHTS = {"w_query": W_QUERY, "w_key": W_KEY, "v": V}
WEIGHTS = {name: jnp.asarray(x, jnp.float32) for name, x in WEIGHTS.items()}
ALLOWED = np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]], bool)


def expected(similarity, allowed=None):
    weights, output = np.zeros((B, T, S)), np.zeros((B, T, J))
    for b, t in np.ndindex(B, T):
        seen = [s for s in range(S) if allowed is None or allowed[b, t, s]]
        share = np.exp([similarity(QUERY[b, t], KEY[b, s]) for s in seen])
        for s, part in zip(seen, share / share.sum() if seen else [], strict=True):
            weights[b, t, s] = part
            output[b, t] += part * VALUE[b, s]
    return output, weights


def close(got, want):
    chex.assert_trees_all_close(got, want, rtol=0, atol=2e-6)


def test_additive_is_its_formula():
    """Bahdanau et al. 2015: v . tanh(W q + U k)."""
    score = lambda q, k: V @ np.tanh(q @ W_QUERY + k @ W_KEY)
    close(functional.additive_attention(*ARRAYS, **WEIGHTS), expected(score))
    allowed = np.broadcast_to(ALLOWED[:, None], (B, T, S))
    close(functional.additive_attention(*ARRAYS, **WEIGHTS, mask=masks.padding(ALLOWED)), expected(score, allowed))


def test_multiplicative_is_its_formula():
    w = jnp.asarray(W, jnp.float32)
    close(functional.multiplicative_attention(*ARRAYS, w=w), expected(lambda q, k: q @ W @ k))
    causal = np.broadcast_to(np.tri(T, S, dtype=bool), (B, T, S))
    close(
        functional.multiplicative_attention(*ARRAYS, w=w, mask=masks.causal()),
        expected(lambda q, k: q @ W @ k, causal),
    )


@pytest.mark.full
@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_contract_of_empty_rows_and_unseen_keys(fill):
    allowed = np.array(np.broadcast_to(ALLOWED[:, None], (B, T, S)))
    allowed[1, 2] = False

    def both(query, key, value):
        output, weights = functional.additive_attention(query, key, value, **WEIGHTS, mask=masks.dense(allowed))
        return jnp.sum(output**2), (output, weights)

    value_and_grads = jax.value_and_grad(both, (0, 1, 2), has_aux=True)
    query, key, value = ARRAYS
    unseen = ~ALLOWED[..., None]
    dirty = (query.at[1, 2].set(fill), *(jnp.where(unseen, fill, x) for x in (key, value)))
    chex.assert_trees_all_equal(value_and_grads(*dirty), value_and_grads(query, key, value))
    (_, (output, weights)), slopes = value_and_grads(*dirty)
    assert not np.asarray(output[1, 2]).any()
    assert not np.asarray(weights)[~allowed].any()
    assert not np.asarray(slopes[0][1, 2]).any()
    assert not np.asarray(slopes[1])[~ALLOWED].any()
