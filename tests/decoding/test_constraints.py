"""Each rule over the previous tokens, against a search through Python lists."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from jaxformer.errors import ConfigError
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, PAD, VOCAB, markov, start
from tests.modules.small import quick
from tests.selection import first

B, K, V, T = 3, 4, 7, 9
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, V, (B, K, T)).astype(np.int32) % 3 + RANDOM.integers(0, 2, (B, K, T)).astype(np.int32)
LENGTHS = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 5]], np.int32)
HISTORY = decoding.History(jnp.asarray(TOKENS), jnp.asarray(LENGTHS), jnp.arange(B))
SCORES = RANDOM.normal(size=(B, K, V)).astype(np.float32)


def banned(transform, history=HISTORY):
    """The banned tokens of each hypothesis; other scores are unchanged, and jit gives the same result."""
    result = np.asarray(transform(jnp.asarray(SCORES), history))
    traced = np.asarray(jax.jit(lambda t, s, h: t(s, h))(transform, jnp.asarray(SCORES), history))
    np.testing.assert_array_equal(result, traced)
    kept = np.isfinite(result)
    np.testing.assert_array_equal(result[kept], SCORES[kept])
    return [[set(np.flatnonzero(~row).tolist()) for row in rows] for rows in kept]


def pasts():
    return [[tuple(TOKENS[b, k, : LENGTHS[b, k]].tolist()) for k in range(K)] for b in range(B)]


@pytest.mark.parametrize("size", first([1, 2, 3, T, T + 1], 2, T + 1))
def test_no_repeat_ngram(size):
    """A token is banned if it completes an n-gram that has occurred; tokens beyond the length are ignored."""

    def expected(past):
        grams = {past[i : i + size] for i in range(len(past) - size + 1)}
        return {t for t in range(V) if len(past) >= size - 1 and (*past, t)[len(past) + 1 - size :] in grams}

    found = banned(decoding.no_repeat_ngram(size))
    assert found == [[expected(past) for past in row] for row in pasts()]
    assert any(any(row) for row in found) == (size <= 3)


@pytest.mark.parametrize("normalized", [False, True])
def test_repetition_penalty(normalized):
    """Scores of either sign of the tokens of the past, and of those before it; tokens beyond the length are ignored."""
    expected = SCORES.copy()
    for b, row in enumerate(pasts()):
        for k, past in enumerate(row):
            seen = sorted({*past, 6})
            expected[b, k, seen] *= np.where(SCORES[b, k, seen] < 0, 1.5, 1 / 1.5)
    penalty = decoding.repetition_penalty(1.5, before=(6,), normalized=normalized)
    np.testing.assert_allclose(quick(penalty)(jnp.asarray(SCORES), HISTORY), expected, rtol=1e-6)
    with pytest.raises(ConfigError, match="repetition_penalty must be above 0 and finite, got -1"):
        decoding.repetition_penalty(-1)


def test_samples_have_a_repetition_penalty_of_their_logits():
    """Before log-softmax, which other rules need; a filter comes after it."""
    penalty = decoding.repetition_penalty(1.5)
    chained = decoding.chain(*decoding.for_sampling((decoding.top_k(3), decoding.forbid([5]), penalty)))
    own = jnp.where(jnp.arange(V) == 5, -jnp.inf, penalty(jnp.asarray(SCORES), HISTORY))
    expected = decoding.chain(decoding.top_k(3))(own, HISTORY)
    np.testing.assert_allclose(quick(chained)(jnp.asarray(SCORES), HISTORY), expected, rtol=1e-5)


def test_forbid_sequences():
    """The last token of each is banned after the others, also if the sequence is longer than the past."""
    sequences = [[5], [1, 2], [2, 2, 1], [1, 1, 1, 6], [0, 1, 2, 3, 1, 2, 0, 1, 4]]

    def expected(past):
        return {s[-1] for s in sequences if len(past) >= len(s) - 1 and past[len(past) - len(s) + 1 :] == tuple(s[:-1])}

    found = banned(decoding.forbid_sequences(sequences))
    assert found == [[expected(past) for past in row] for row in pasts()]
    assert len({frozenset(one) for row in found for one in row}) > 2


@pytest.mark.parametrize("order", [pytest.param([0, 1, 2], marks=pytest.mark.full), [2, 0, 1]])
def test_shortlists_of_each_sentence(order):
    """A list moves with its sentence to another row, and negative ids are padding."""
    allowed = [{1, 4}, {2}, {0, 5, 6}]
    lists = jnp.array([[1, 4, -1], [2, -1, -1], [0, 5, 6]])
    history = decoding.History(HISTORY.tokens, HISTORY.lengths, jnp.array(order))
    found = banned(decoding.shortlist(lists), history)
    assert found == [[set(range(V)) - allowed[sentence]] * K for sentence in order]
    assert banned(decoding.shortlist(jnp.array([3, -1])), history) == [[set(range(V)) - {3}] * K] * B
    for transform in (decoding.shortlist(lists[:2]), decoding.min_length(jnp.array([1, 2]), eos=0)):
        with pytest.raises(ValueError, match="a transform has values for 2 rows, but the batch has 3"):
            transform(jnp.asarray(SCORES), history)


def test_shortlists_of_a_symbolic_batch():
    """An exported program takes one list for each sentence, whatever their number."""
    (b,) = jax.export.symbolic_shape("b")
    of = lambda *shape, dtype=jnp.int32: jax.ShapeDtypeStruct((b, *shape), dtype)
    history = decoding.History(of(K, T), of(K), of())
    rule = lambda lists, scores, tokens, lengths, rows: decoding.shortlist(lists)(
        scores, decoding.History(tokens, lengths, rows)
    )
    shapes = (of(2), of(K, V, dtype=jnp.float32), history.tokens, history.lengths, history.rows)
    program = jax.export.export(jax.jit(rule))(*shapes)
    lists = jnp.array([[1, 4], [2, -1], [0, 5]])
    got = program.call(lists, jnp.asarray(SCORES), HISTORY.tokens, HISTORY.lengths, HISTORY.rows)
    np.testing.assert_array_equal(got, decoding.shortlist(lists)(jnp.asarray(SCORES), HISTORY))


def test_rules_before_and_after_normalization():
    """Hugging Face bans after log-softmax, CTranslate2 before; a shortlist always shares the probability."""
    assert decoding.no_repeat_ngram(2).normalized
    assert not decoding.no_repeat_ngram(2, normalized=False).normalized
    assert decoding.forbid_sequences([[1]]).normalized
    assert not decoding.shortlist(jnp.array([1])).normalized
    rule = decoding.chain(decoding.shortlist(jnp.array([1, 3])))
    np.testing.assert_allclose(np.exp(rule(jnp.asarray(SCORES), HISTORY)).sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    "search", [searches.greedy, functools.partial(searches.sample, key=0)], ids=["greedy", "sample"]
)
@pytest.mark.parametrize("normalized", first([True, False], True))
def test_a_sequence_ends_if_no_token_is_allowed(search, normalized):
    """Neither a forbidden token nor `pad` is chosen instead; other sentences continue."""
    step, _ = markov(0)
    free = sorted(set(range(VOCAB)) - {BEGIN, END, PAD})

    def scarce(scores, history):  # the first sentence must not repeat a token, the second has no rule
        rows = (history.rows == 0)[:, None, None]
        return jnp.where(rows, once(scores, history), scores)

    once, scarce.normalized = decoding.no_repeat_ngram(1, normalized=normalized), normalized
    rules = (scarce, decoding.forbid([PAD, BEGIN, END], normalized=normalized))
    options = {"max_length": len(free) + 3, "forced_end": "never", "bos": BEGIN, "eos": END, "pad": PAD}
    found = jax.device_get(quick(lambda state: search(step, state, transforms=rules, **options))(start(1)))
    assert sorted(found.tokens[0, 0, : len(free)]) == free
    assert (found.tokens[0, 0, len(free) :] == PAD).all()
    assert found.lengths[0, 0] == len(free)
    assert np.isfinite(found.log_probs).all()
    assert found.lengths[1, 0] == len(free) + 3
