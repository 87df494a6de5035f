"""Beam search against enumeration, on models small enough to enumerate."""

import itertools

import chex
import jax
import numpy as np
import pytest

from jaxformer import decoding
from tests.decoding import searches
from tests.decoding.toys import (
    BEGIN,
    END,
    LENGTH,
    PAD,
    VOCAB,
    as_tuples,
    markov,
    start,
    total_log_prob,
)
from tests.modules.small import int32, quick
from tests.selection import first


def begun(step, state, beam_size, **options):
    options = {"max_length": LENGTH, "bos": BEGIN, "eos": END, "pad": PAD, **options}
    return searches.beam_search(step, state, beam_size=beam_size, **options)


def search(step, state, beam_size, **options):
    """Returns the hypotheses as NumPy arrays, from one program."""
    return jax.device_get(quick(lambda state: begun(step, state, beam_size, **options))(state))


@pytest.mark.parametrize("stopping", first(["first", "limit"], "limit"))
def test_sequences_without_bos_and_eos(stopping):
    """The prefix begins them, the limit ends them, and a wide beam finds the best sequences of all."""
    step, table = markov(0)
    options = {"bos": None, "eos": None, "prefix": int32([[3], [4]]), "stopping": stopping, "length_penalty": 0.0}
    result = search(step, start(30), 30, max_lengths=int32([4, 3]), **options)
    for sentence, (begin, length) in enumerate([(3, 3), (4, 2)]):
        bodies = itertools.product([t for t in range(VOCAB) if t != PAD], repeat=length)
        every = sorted(bodies, key=lambda body: -total_log_prob(table, sentence, body, before=begin))
        assert as_tuples(result, sentence)[:5] == [(begin, *body) for body in every[:5]]
        expected = [total_log_prob(table, sentence, body, before=begin) for body in every[:5]]
        np.testing.assert_allclose(result.scores[sentence, :5], expected, rtol=1e-5)


def test_a_beam_ends_at_the_limit_even_if_a_transform_has_removed_the_end():
    """The most probable tokens before it rank first, and tokens that a transform has kept rank before others."""
    step, _ = markov(3, shift=-50.0)
    result = search(step, start(3), 3, transforms=(decoding.min_length(LENGTH + 1, eos=END),))
    assert (np.asarray(result.lengths) == LENGTH).all()
    assert (np.asarray(result.tokens[..., -1]) == END).all()
    assert np.isfinite(result.scores).all()
    before = np.asarray(result.token_log_probs[..., :-1]).sum(-1)
    assert (np.diff(before) <= 0).all()
    first = as_tuples(result, 0)[0]
    others = search(step, start(3), 3, transforms=(decoding.forbid_sequences([first[-2:]]),))
    kept = [tokens[-2:] != first[-2:] for tokens in as_tuples(others, 0)]
    assert kept == sorted(kept, reverse=True)
    assert kept[0]


@pytest.mark.full
@pytest.mark.parametrize("count_eos", first([True, False], True))
def test_a_trace_shows_every_step_of_the_search(count_eos):
    """The result is that of the search without one. Each step considers the best continuations of what was live before,
    keeps the best K that do not end, and finishes those that end among the best K, unless K better ones have ended."""
    (step, table), beam_size, limits = markov(11), 3, np.array([2, 4])
    penalty = decoding.LengthPenalty(0.6, count_eos=count_eos)
    options = {"length_penalty": penalty, "max_lengths": int32(limits)}
    trace = decoding.BeamTrace(num_candidates=9)
    traced = jax.device_get(begun(step, start(beam_size), beam_size, trace=trace, **options))
    plain_result = search(step, start(beam_size), beam_size, **options)
    np.testing.assert_array_equal(traced.tokens, plain_result.tokens)
    np.testing.assert_allclose(traced.scores, plain_result.scores, rtol=1e-6)
    for sentence, limit in enumerate(limits):
        live, finished = [()], []
        for number, considered in enumerate((step[sentence] for step in trace.steps), 1):
            if number > limit:
                assert not considered
                continue
            allowed = [END] if number == limit else [t for t in range(VOCAB) if t not in (PAD, BEGIN)]
            every = [(total_log_prob(table, sentence, (*old, t)), (*old, t)) for old in live for t in allowed]
            every = sorted(every, reverse=True)
            assert [one.tokens for one in considered] == [tokens for _, tokens in every[:9]]
            np.testing.assert_allclose([one.log_prob for one in considered], [p for p, _ in every[:9]], rtol=1e-5)
            live = [tokens for _, tokens in every if tokens[-1] != END][:beam_size]
            assert [one.tokens for one in considered if one.fate == "live"] == live
            for log_prob, tokens in every[:beam_size]:
                if tokens[-1] == END:
                    finished.append((log_prob / max(1, number - (not count_eos)) ** 0.6, tokens))
            finished = sorted(finished, reverse=True)[:beam_size]
            new = {tokens for _, tokens in finished if len(tokens) == number}
            assert {one.tokens for one in considered if one.fate == "finished"} == new
            for one in considered:
                counted = number - (one.tokens[-1] == END and not count_eos)
                assert one.score == pytest.approx(one.log_prob / max(1, counted) ** 0.6, rel=1e-5)
        ended = np.isfinite(np.asarray(traced.scores[sentence]))
        assert [t for t, e in zip(as_tuples(traced, sentence), ended, strict=True) if e] == [t for _, t in finished]


def test_one_program_for_equal_shapes():
    step, _ = markov(7)
    run = jax.jit(chex.assert_max_traces(lambda state: begun(step, state, 2), n=1))
    run(start(2))
    run(start(2, sentences=[1, 0]))


@pytest.mark.parametrize("method", first(["greedy", "beam"], "beam"))
def test_bos_may_equal_eos(method):
    """As for BART: the result equals that with another bos token whose row is the same."""
    step, table = markov(4)
    table[:, :, BEGIN] = table[:, :, END]  # so that both begin alike

    def result(bos):
        # Never chosen in either search, so that both choose among the same tokens.
        barred = lambda tokens, state: (lambda x, s: (x.at[..., BEGIN].set(-1e9), s))(*step(tokens, state))
        if method == "greedy":
            return searches.greedy(barred, start(1), max_length=LENGTH, bos=bos, eos=END)
        return search(barred, start(3), 3, bos=bos)

    same, other = result(END), result(BEGIN)
    np.testing.assert_array_equal(same.tokens, other.tokens)
    np.testing.assert_allclose(same.scores, other.scores, rtol=1e-5)
    assert np.isfinite(np.asarray(same.scores)).all()


def test_pad_may_equal_eos():
    """As for GPT-2: the hypotheses are those with another pad, filled with eos."""
    step, _ = markov(0, shift=1.0)
    rules = (decoding.forbid([PAD]),)
    runs = (
        lambda state, **ids: searches.greedy(step, state, max_length=LENGTH, bos=BEGIN, eos=END, **ids),
        lambda state, **ids: begun(step, state, 2, **ids),
    )
    for run in runs:
        both = quick(lambda state: [run(state, pad=pad, transforms=rules) for pad in (END, PAD)])  # noqa: B023
        found, expected = both(start(1 if run is runs[0] else 2))
        np.testing.assert_array_equal(found.lengths, expected.lengths)
        inside = np.arange(LENGTH) < np.asarray(expected.lengths)[..., None]
        assert not inside.all()
        np.testing.assert_array_equal(found.tokens, np.where(inside, expected.tokens, END))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_without_allowed_tokens_returns_its_hypotheses(beam_size):
    """No token twice: three may be chosen. A beam of one equals greedy search, and other sentences do not change."""
    step, _ = markov(3)
    once = decoding.no_repeat_ngram(1)
    options = {"eos": None, "max_length": 6, "transforms": (once, decoding.forbid([END]))}
    result = search(step, start(beam_size), beam_size, stopping="limit", **options)
    for sentence in range(2):
        found = as_tuples(result, sentence)
        assert all(sorted(tokens) == [3, 4, 5] for tokens in found)
        assert len(set(found)) == beam_size
    np.testing.assert_allclose(result.scores, result.log_probs / 3, rtol=1e-6)
    assert (np.diff(result.scores, axis=1) < 0).all()
    if beam_size == 1:
        other = searches.greedy(step, start(1), bos=BEGIN, pad=PAD, **options)
        for name in ("tokens", "lengths", "log_probs", "token_log_probs"):
            np.testing.assert_array_equal(getattr(result, name), getattr(other, name))


def test_no_token_is_allowed_from_the_start():
    step, _ = markov(3)
    result = search(step, start(2), 2, transforms=decoding.forbid(range(VOCAB)), max_length=3, forced_end="never")
    assert as_tuples(result, 0) == [(), ()]
    assert result.scores[0].tolist() == [0, -np.inf]


def test_a_trace_of_hypotheses_that_finish_at_the_limit():
    """Without a forced end, all of the last step are finished or pruned; they were called live."""
    step, _ = markov(11)
    trace = decoding.BeamTrace()
    result = begun(step, start(2), 2, max_length=2, forced_end="never", trace=trace)
    for sentence, considered in enumerate(trace.steps[-1]):
        finished = [one.tokens for one in considered if one.fate == "finished"]
        assert {one.fate for one in considered} == {"finished", "pruned"}
        assert set(finished) <= set(as_tuples(result, sentence))


def test_a_batch_without_rows():
    step = lambda tokens, state: (jax.numpy.zeros((*tokens.shape, VOCAB)), state)
    assert begun(step, decoding.TreeState(np.zeros((0, 2))), 2).tokens.shape == (0, 2, LENGTH)
