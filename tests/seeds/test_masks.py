"""CHECKLIST section K: masks, with the documents' own numbers."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, modules
from jaxformer.data.windows import OrderedWindows, TokenStream
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.modules.small import built, normal, quick
from tests.seeds.example import K, Q, V

attention_head = quick(functional.attention_head)
attention = quick(functional.attention)
attention_weights = quick(functional.attention_weights)


def attend(mask):
    return attention_head(Q, K, V, mask=mask)


def test_k1_three_ways_to_write_causal():
    """j <= i is visible: additive (000), 0/1 lower triangle (002), Boolean.

    004 calls its M "lower triangular with -inf", but minus infinity is strictly above the diagonal.
    """
    mask = masks.causal()
    tril = np.tril(np.ones((5, 5)))
    np.testing.assert_array_equal(mask.dense(5, 5)[0, 0], tril == 1)
    additive = np.asarray(mask.additive(4, 4)[0, 0])
    assert np.isneginf(additive[np.triu_indices(4, 1)]).all()
    assert not additive[np.tril_indices(4)].any()
    biased = attention_head(Q, K, V, bias=mask.additive(3, 3)[0, 0])
    chex.assert_trees_all_close(biased, attend(mask), rtol=0, atol=1e-6)


def test_k2_masked_weights():
    """Weights are exactly 0 above the diagonal, A_ij = e^E_ij / sum over k <= i, row 1 = [1, 0, 0]."""
    _, weights = attend(masks.causal())
    assert not np.triu(weights, 1).any()
    score = np.exp(Q @ K.T / np.sqrt(2))
    for i in range(3):
        np.testing.assert_allclose(weights[i, : i + 1], score[i, : i + 1] / score[i, : i + 1].sum(), atol=1e-6)
    assert weights[0].tolist() == [1, 0, 0]


def test_k3_worked_example_with_causal_mask():
    """Our value: row 2 of the weights is [.944193, .055807, 0], of the output [1, 1.888386]."""
    output, weights = attend(masks.causal())
    np.testing.assert_allclose(weights[1], [0.944193, 0.055807, 0], atol=1e-6)
    np.testing.assert_allclose(output[1], [1, 1.888386], atol=2e-6)


def test_k4_one_mask_for_every_batch_and_head():
    """An (L, L) mask of ones (attend) and zeros broadcasts over batch and heads; the last row is unchanged."""
    query, key, value = (normal(2, 4, 3, 8, seed=i) for i in range(3))
    plain = attention_weights(query, key)
    weights = attention_weights(query, key, mask=masks.from_binary(np.tril(np.ones((4, 4)))))
    assert not np.triu(weights, 1).any()
    np.testing.assert_allclose(weights[:, :, -1], plain[:, :, -1], atol=1e-6)
    output = attention(query, key, value, mask=masks.causal())
    np.testing.assert_allclose(output, np.einsum("bnts,bsnh->btnh", weights, value), atol=1e-5)


def test_k5_additive_masks_add_up():
    """E + M + P combines causal and padding masks. An empty row gives 0 here; the documents' formula gives NaN.

    The document calls P "binary", but it holds 0 and minus infinity.
    """
    padding = masks.padding(np.array([[False, True, True]]))
    both = masks.causal() & padding
    with np.errstate(invalid="ignore"):
        total = np.asarray(masks.causal().additive(3, 3) + padding.additive(3, 3))
    np.testing.assert_array_equal(total, both.additive(3, 3))
    output, weights = attend(both)
    assert not np.asarray(weights[0]).any()
    assert not np.asarray(output[0]).any()
    np.testing.assert_allclose(weights[1:].sum(1), 1, rtol=1e-6)


def test_k6_x6_padding_listing():
    """Lengths [4, 6] of 6, mask = arange < length: keys 4, 5 of item 0 have weight 0, padded queries give rows."""
    lengths = np.array([4, 6])
    valid = np.arange(6) < lengths[:, None]
    query, key, value = (normal(2, 6, 1, 64, seed=i) for i in range(3))
    weights = np.asarray(attention_weights(query, key, mask=masks.padding(valid)))
    assert not weights[0, :, :, 4:].any()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    output = attention(query, key, value, mask=masks.lengths(lengths))
    assert output.shape == (2, 6, 1, 64)
    assert np.abs(np.asarray(output[0, 4:])).min() > 0
    np.testing.assert_array_equal(output, attention(query, key, value, mask=masks.padding(valid)))


def test_k7_padding_invariance():
    """A8 with key 3 padded: row 1 [.05581, .94419, 0]; valid rows equal those of the unpadded run."""
    _, weights = attend(masks.padding(np.array([[True, True, False]])))
    np.testing.assert_allclose(weights[0], [0.05581, 0.94419, 0], atol=5e-6)
    output, _ = attend(masks.padding(np.array([[True, True, False]])))
    np.testing.assert_allclose(output[:2], attention_head(Q[:2], K[:2], V[:2])[0], atol=1e-6)


def test_k8_start_big_cat():
    """ "[START] Big cat": query 1 sees key 1, query 2 keys 1 and 2, query 3 all three, by their weights."""
    words = normal(1, 3, 1, 8)
    weights = np.asarray(attention_weights(words, words, mask=masks.causal()))[0, 0]
    assert [(row > 0).nonzero()[0].tolist() for row in weights] == [[0], [0, 1], [0, 1, 2]]
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)


def test_k9_prefix_by_prefix():
    """The loop that recomputes every prefix equals one masked pass."""
    output, _ = attend(masks.causal())
    for t in range(3):
        row, _ = attention_head(Q[t : t + 1], K[: t + 1], V[: t + 1])
        np.testing.assert_allclose(row[0], output[t], atol=1e-6)


def test_k9_for_a_block():
    """The same holds for a whole decoder-only block (including its padding and order of sums)."""

    def make(rngs):
        attention, feed_forward = modules.SelfAttention(8, 2, rngs=rngs), modules.FeedForward(8, rngs=rngs)
        return modules.Block(attention, feed_forward, norm=lambda: modules.LayerNorm(8))

    net, params = built(make)
    x = normal(1, 4, 8)
    output = net.apply(params, x, mask=masks.causal())
    for t in range(4):
        np.testing.assert_allclose(net.apply(params, x[:, : t + 1])[:, -1], output[:, t], atol=1e-5)


def test_k10_five_pairs():
    """Inputs "The cat sat on the", targets "cat sat on the mat": each prefix predicts its next word.

    The windows of a text give both; the mask of a language model shows each row its prefix.
    """
    words = "The cat sat on the mat".split()
    batch = OrderedWindows(TokenStream(np.arange(6), SpecialTokens()), length=5, batch_size=1).batch(0)
    visible = np.asarray(masks.causal().dense(5, 5)[0, 0])
    read = lambda tokens: [words[token] for token in tokens]
    pairs = [
        (read(batch.tokens.ids[0][row]), words[label]) for row, label in zip(visible, batch.labels[0], strict=True)
    ]
    assert batch.tokens.valid.all()
    assert pairs == [(words[:n], words[n]) for n in range(1, 6)]


def test_z6_every_convention_is_the_same_mask():
    """Additive, 0/1, Boolean valid and PyTorch's Boolean blocked masks all convert to True = attend.

    They give the same output, as does the additive mask itself as a bias.
    """
    expected = np.tri(4, dtype=bool)
    additive = np.where(expected, 0.0, -np.inf).astype(np.float32)
    query, key, value = (normal(2, 4, 3, 8, seed=i) for i in range(3))
    causal = attention(query, key, value, mask=masks.causal())
    for mask in (
        masks.dense(additive == 0),
        masks.from_binary(expected.astype(np.float32)),
        masks.from_binary(expected.astype(int)),
        masks.from_torch(~expected),
        masks.as_mask(jnp.asarray(expected)),
    ):
        np.testing.assert_array_equal(mask.dense(4, 4)[0, 0], expected)
        np.testing.assert_array_equal(attention(query, key, value, mask=mask), causal)
    biased = attention(query, key, value, bias=jnp.asarray(additive)[None, None])
    np.testing.assert_allclose(biased, causal, atol=1e-6)
    with pytest.raises(ValueError, match=r"got -inf; for an additive mask"):
        masks.from_binary(additive)
