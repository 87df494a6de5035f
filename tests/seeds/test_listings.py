"""CHECKLIST A21, K4, X1 and X2: the documents' seeded listings with the numbers of PyTorch's generator."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.generator import seeded
from jaxformer import functional, masks
from jaxformer.inspection.attention_maps import AttentionMap, as_table


def test_a21_naive_listing():
    """Unscaled attention of three tokens; the scaled one spreads. The document prints no values; these are recomputed.

    X9: the listing calls its W_V (d_model, d_k), and returns a pair although its docstring promises the output.
    """
    x = jnp.array([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
    w_q, w_k, w_v = seeded(42, (4, 4), (4, 4), (4, 4))
    query, key, value = x @ w_q, x @ w_k, x @ w_v
    np.testing.assert_allclose(query[0], [1.1748, 3.1360, 0.5082, -3.5091], atol=5e-4)
    _, unscaled = functional.attention_head(query, key, value, scale=1.0)
    output, scaled = functional.attention_head(query, key, value)
    np.testing.assert_allclose(unscaled[0], [0.9981, 0, 0.0019], atol=5e-5)
    np.testing.assert_allclose(scaled[0], [0.9575, 0.0012, 0.0413], atol=5e-5)
    np.testing.assert_allclose(output[0], [-2.9805, 0.1984, -1.1424, 1.0598], atol=5e-4)


def test_k4_masked_demo():
    query, key, value = seeded(0, (4, 8), (4, 8), (4, 8))
    _, plain = functional.attention_head(query, key, value)
    _, masked = functional.attention_head(query, key, value, mask=masks.causal())
    np.testing.assert_allclose(plain[0], [0.1211, 0.7410, 0.1060, 0.0320], atol=5e-5)
    np.testing.assert_allclose(masked[1], [0.4929, 0.5071, 0, 0], atol=5e-5)
    np.testing.assert_allclose(masked[2], [0.6221, 0.0318, 0.3461, 0], atol=5e-5)
    np.testing.assert_allclose(masked[3], plain[3], atol=1e-6)


def test_x1_visualized_sentence():
    """ "I love cats and dogs": rows are nearly one-hot, because unnormalized projections defeat the scaling.

    The table has words on both sides, three decimals and the sum of each row, as the exercise prints it.
    """
    x, w_q, w_k = seeded(42, (5, 16), (16, 16), (16, 16))
    _, weights = functional.attention_head(x @ w_q, x @ w_k, x)
    words = tuple("I love cats and dogs".split())
    header, *rows = (line.split() for line in as_table(AttentionMap(words, words, np.asarray(weights))).splitlines())
    assert header == [*words, "|", "sum", "entropy"]
    assert [row[0] for row in rows] == list(words)
    assert [row[7] for row in rows] == ["1.000"] * 5
    expected = [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0.012, 0.988, 0, 0, 0], [0.990, 0.010, 0, 0, 0], [1, 0, 0, 0, 0]]
    np.testing.assert_allclose([[float(cell) for cell in row[1:6]] for row in rows], expected, atol=6e-4)


def test_x2_entropy_of_scaling():
    """d_k = 512, L = 20: entropy .2193 unscaled, 2.5955 scaled, ln 20 = 2.9957 at most; weights 1.000000, .396416."""
    query, key = (x[None, :, None] for x in seeded(42, (20, 512), (20, 512)))
    unscaled, scaled = (functional.attention_statistics(query, key, scale=scale) for scale in (1.0, None))
    even = functional.attention_statistics(0 * query, key)
    np.testing.assert_allclose(even.entropy, 2.9957, atol=5e-5)
    assert float(unscaled.entropy.mean()) == pytest.approx(0.2193, abs=2e-4)
    assert float(scaled.entropy.mean()) == pytest.approx(2.5955, abs=2e-4)
    assert float(unscaled.top_weight.max()) == pytest.approx(1, abs=1e-6)
    assert float(scaled.top_weight.max()) == pytest.approx(0.396416, abs=1e-5)
    np.testing.assert_allclose(unscaled.variance, 512 * scaled.variance, rtol=1e-4)
