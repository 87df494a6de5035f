"""Length normalization, coverage of the source, and patience."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, PAD, VOCAB, as_tuples, markov, start, total_log_prob
from tests.modules.small import int32, quick
from tests.selection import first

VALID = jnp.array([[True, True, True], [True, True, False]])


def attending(penalty=0.7):
    """Words 3, 4 and 5 attend to one source token each, END to all; the table prefers to repeat 3."""
    attention = np.full((VOCAB, 3), 1 / 3, np.float32)
    attention[3:6] = np.eye(3) * 0.9 + 0.1 / 3

    def step(tokens, state):
        logits = jnp.log(jnp.array([1e-9, 1e-9, 0.25, 0.4, 0.25, 0.1]))
        weights = jnp.where(VALID[state.state.tree], jnp.asarray(attention)[tokens], 0.0)
        weights = jnp.where((tokens == BEGIN)[..., None], 0.0, weights)
        return jnp.broadcast_to(logits, (*tokens.shape, VOCAB)), state.attending(weights, state.state)

    sentences = jnp.broadcast_to(jnp.arange(2)[:, None], (2, 4))
    return step, decoding.CoverageState.start(decoding.TreeState(sentences), VALID, penalty=penalty), attention


@pytest.mark.parametrize("counted", first([False, True], False))
def test_a_length_with_or_without_its_prefix(counted):
    """A wide beam finds all texts of up to three tokens, and ranks them by the length that the penalty counts."""
    step, table = markov(0)
    prefix = int32([[3, 5], [4, 3]])
    penalty = decoding.LengthPenalty(1.0, count_prefix=counted)
    options = {"bos": None, "eos": END, "pad": PAD, "stopping": "limit", "length_penalty": penalty, "prefix": prefix}
    result = quick(lambda state: searches.beam_search(step, state, beam_size=24, max_length=5, **options))(start(24))
    texts = [token for token in range(VOCAB) if token not in (PAD, END)]
    bodies = [(*body, END) for size in range(3) for body in itertools.product(texts, repeat=size)]
    for sentence, (begin, *given) in enumerate(prefix.tolist()):
        total = [total_log_prob(table, sentence, (*given, *body), before=begin) for body in bodies]
        total = np.array(total) - total_log_prob(table, sentence, given, before=begin)
        scores = np.sort(total / [len(body) + 2 * counted for body in bodies])[::-1]
        np.testing.assert_allclose(result.scores[sentence, : len(bodies)], scores, rtol=1e-5)


@pytest.mark.full
def test_coverage_is_summed_along_each_hypothesis():
    """A finished hypothesis's score has the coverage of its own tokens; padding of the source never counts."""
    step, state, attention = attending()
    options = {"beam_size": 4, "max_length": 4, "bos": BEGIN, "eos": END, "length_penalty": 0.5}
    plain = searches.beam_search(step, attending(0.0)[1], **options)
    found = searches.beam_search(step, state, **options)
    assert as_tuples(found, 0) != as_tuples(plain, 0)
    for sentence in range(2):
        for k, tokens in enumerate(as_tuples(found, sentence)):
            attended = (attention[list(tokens[:-1])] * np.asarray(VALID[sentence])).sum(0)[np.asarray(VALID[sentence])]
            coverage = np.log(np.clip(attended, np.finfo(np.float32).tiny, 1)).sum()
            expected = found.log_probs[sentence, k] / len(tokens) ** 0.5 + 0.7 * coverage
            np.testing.assert_allclose(found.scores[sentence, k], expected, rtol=1e-5)


def test_a_coverage_state_follows_its_hypotheses():
    _, state, _ = attending()
    state = decoding.CoverageState(state.state, jnp.arange(24.0).reshape(2, 4, 3), 0.7)
    assert state.shape == (2, 4)
    again = state.reorder(jnp.array([[3, 3, 0, 1]] * 2)).take(jnp.array([1]))
    assert again.attended[0, :, 0].tolist() == [21, 21, 12, 15]
    assert again.state.tree.tolist() == [[1, 1, 1, 1]]


def test_gnmt_length_starts_at_five():
    scores = decoding.GNMTPenalty(0.6)(jnp.float32(-8), jnp.array([1, 10]), ended=True)
    np.testing.assert_allclose(scores, [-8.0, -8 / 2.5**0.6], rtol=1e-6)


def test_a_penalty_may_be_a_number_of_numpy():
    step, _ = markov(0)
    given = {"beam_size": 2, "max_length": 2, "bos": BEGIN, "eos": END, "length_penalty": np.float32(0.5)}
    assert jax.eval_shape(lambda state: searches.beam_search(step, state, **given), start(2)).scores.dtype == np.float32


def test_patience_rounds_and_is_at_least_one():
    assert [decoding.Patience(x).needed(4) for x in (0.1, 1.0, 1.4, 2.0, 1e30)] == [1, 4, 6, 8, 2**30]
    assert [decoding.Patience(x).needed(5) for x in (0.5, 0.9, 1.3)] == [3, 5, 7]  # halves up, as in CTranslate2
