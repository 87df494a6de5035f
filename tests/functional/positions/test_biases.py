"""Biases by position: the slopes of ALiBi, the buckets of T5, and the four terms of Transformer-XL."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from tests.modules.small import quick


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [(8, [2.0**-i for i in range(1, 9)]), (3, [2**-4, 2**-8, 2**-2]), (6, [0.25, 0.0625, 2**-6, 2**-8, 0.5, 0.125])],
)
def test_alibi_slopes(num_heads, slopes):
    """Powers of two have the paper's slopes; other numbers interleave those of the next power, as in its code."""
    np.testing.assert_allclose(functional.alibi(num_heads).slopes, slopes)


def test_alibi_extends_without_retraining():
    """The bias of a longer sequence holds that of a shorter one."""
    tile = lambda n: functional.alibi(2).tile(None, jnp.arange(n), jnp.arange(n))
    np.testing.assert_array_equal(tile(9)[..., :5, :5], tile(5))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets(bidirectional):
    """Half exact, half logarithmic, the last for all longer distances; one-way, keys ahead have distance 0."""
    ahead = jnp.arange(-300, 301)
    buckets = np.asarray(functional.t5_bucket(ahead, num_buckets=32, max_distance=128, bidirectional=bidirectional))
    behind, ahead_of = buckets[300::-1], buckets[300:]
    exact, last = (8, 15) if bidirectional else (16, 31)
    assert behind[:exact].tolist() == list(range(exact))
    assert (np.diff(behind) >= 0).all()
    assert set(behind[128:]) == {last}
    assert sorted(set(behind)) == list(range(last + 1))
    assert (ahead_of[1:] == behind[1:] + 16).all() if bidirectional else not ahead_of.any()


def test_t5_buckets_at_integer_quotients():
    """80 = 64 (100 / 64)^(32 / 64) exactly, where a float32 logarithm is one bucket short."""
    options = {"num_buckets": 128, "max_distance": 100, "bidirectional": False}
    assert functional.t5_bucket(jnp.array([-79, -80]), **options).tolist() == [94, 96]


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

    @quick
    def attend(query, key, value, *given):
        moved, bias = functional.transformer_xl(query, *given)
        return functional.attention(moved, key, value, bias=bias)

    got = attend(*map(np.float32, (query, key, value, kernel, u, v)))
    np.testing.assert_allclose(got[0], np.einsum("nts,snj->tnj", weights, value[0]), atol=1e-5)
