"""Utilities against sacrebleu, and the choices that follow from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu

from jaxformer import decoding
from tests.selection import first

RANDOM = np.random.default_rng(0)
WORDS = ["a", "dog", "dogs", "runs", "été", "🐕🐕", "the", "rather"]
TEXTS = [" ".join(RANDOM.choice(WORDS, size)) for size in (1, 2, 3, 4, 5, 7, 9, 12)]
TEXTS += ["", "zz", TEXTS[4], " ".join(TEXTS[5].split()[::-1])]


def ids(sequences):
    """Sequences as rows of ids, with other ids after their ends."""
    known = {unit: 7 * i + 3 for i, unit in enumerate(sorted({unit for sequence in sequences for unit in sequence}))}
    rows = RANDOM.integers(0, 50, (len(sequences), max(map(len, sequences)) + 2)).astype(np.int32)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = [known[unit] for unit in sequence]
    return jnp.asarray(rows), jnp.asarray([len(sequence) for sequence in sequences], jnp.int32)


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_utilities_equal_sacrebleu(metric):
    """For every text with every other as its reference: short, long, equal, empty and without common n-grams."""
    if metric == "chrf":
        theirs, sequences, ours = sacrebleu.CHRF(), [text.replace(" ", "") for text in TEXTS], decoding.chrf_utilities
    else:
        theirs = sacrebleu.BLEU(effective_order=True, tokenize="none")
        sequences, ours = [text.split() for text in TEXTS], decoding.bleu_utilities
    expected = [[theirs.sentence_score(text, [other]).score for other in TEXTS] for text in TEXTS]
    result = jax.jit(ours)(*ids(sequences))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)
    assert len(np.unique(np.round(expected, 3))) > 30


@pytest.mark.parametrize("utilities", [decoding.chrf_utilities, decoding.bleu_utilities])
@pytest.mark.parametrize("dtype", first(["int8", "uint8", "int16"], "uint8"))
def test_utilities_of_bytes(utilities, dtype):
    """There are more n-grams than such a type has numbers."""
    tokens, lengths = RANDOM.integers(97, 100, (8, 60)), np.full(8, 60, np.int32)
    run = jax.jit(lambda tokens: utilities(tokens, lengths))
    np.testing.assert_array_equal(run(tokens.astype(dtype)), run(tokens.astype(np.int32)))


@pytest.mark.full
def test_utilities_of_several_sentences_at_once():
    """`jax.vmap` over sentences changes nothing."""
    rows, lengths = ids(TEXTS)
    both = jax.jit(jax.vmap(decoding.chrf_utilities))(
        jnp.stack([rows, rows[::-1]]), jnp.stack([lengths, lengths[::-1]])
    )
    np.testing.assert_allclose(both[0], both[1][::-1, ::-1], rtol=1e-5)
    np.testing.assert_allclose(both[0], jax.jit(decoding.chrf_utilities)(rows, lengths), rtol=1e-5)


def test_minimum_risk_chooses_the_most_central_text():
    """A text that shares something with every other is chosen; the weights of references count."""
    texts = ["abcd", "abcx", "zbcd", "abyy", "qqqq"]
    utilities = jax.jit(decoding.chrf_utilities)(*ids(texts))
    risk = decoding.minimum_bayes_risk(utilities)
    np.testing.assert_allclose(risk, np.asarray(utilities).mean(1), rtol=1e-6)
    assert int(risk.argmax()) == 0
    weighted = decoding.minimum_bayes_risk(utilities, jnp.array([0, 0, 0, 0, 1.0]))
    assert int(weighted.argmax()) == 4


def test_rerank_sorts_all_fields_by_the_new_scores():
    tokens, pairs = jnp.arange(12).reshape(2, 3, 2), jnp.arange(6).reshape(2, 3)
    numbers, of_tokens = pairs.astype(jnp.float32), tokens.astype(jnp.float32)
    found = decoding.Hypotheses(tokens, pairs, numbers, numbers, of_tokens)
    result = decoding.rerank(found, jnp.array([[0.1, 0.3, 0.2], [3.0, 1.0, 2.0]]))
    assert result.lengths.tolist() == [[1, 2, 0], [3, 5, 4]]
    assert result.tokens[0].tolist() == [[2, 3], [4, 5], [0, 1]]
    assert result.log_probs.tolist() == [[1, 2, 0], [3, 5, 4]]
    np.testing.assert_allclose(result.scores, [[0.3, 0.2, 0.1], [3, 2, 1]])
