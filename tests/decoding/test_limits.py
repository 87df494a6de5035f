"""Prefixes that are read in one pass, in every search and with every length."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, PAD, VOCAB, as_tuples, markov, start
from tests.modules.small import quick
from tests.selection import first

IDS = {"bos": BEGIN, "eos": END, "pad": PAD}
WORDS = jnp.array([[3, 4, END], [5, 0, 0], [4, 9, 9], [4, 4, 4]])
LENGTHS = jnp.array([3, 1, 0, 3])


SEARCHES = {
    "greedy": searches.greedy,
    "beam": functools.partial(searches.beam_search, beam_size=3),
    "sample": lambda step, state, **given: searches.sample(step, state, key=jax.random.key(0), **given),
}


@pytest.mark.parametrize("bos", first([BEGIN, None], BEGIN))
@pytest.mark.parametrize("method", first(SEARCHES, "beam"))
def test_a_prefix_read_in_one_pass_equals_steps(method, bos):
    """Same tokens and log-probabilities; the state sees each token but the last, with its index."""
    step, _ = markov(6, batch=4, steps=6)
    seen, results = [], []

    def read(tokens, state, lengths):
        seen.append((np.asarray(tokens), np.asarray(lengths)))
        return decoding.TreeState({**state.tree, "step": state.tree["step"] + lengths})

    for reader in (None, read):
        given = {"max_length": 6, "max_lengths": jnp.array([6, 5, 6, 3]), "bos": bos, "eos": END}
        given["prefix"] = decoding.Prefix(WORDS, LENGTHS, reader)
        results.append(SEARCHES[method](step, start(3, batch=4), **given))
    chex.assert_trees_all_equal(*results)
    ((tokens, lengths),) = seen
    first = [[BEGIN, 3, 4], [BEGIN, 5, 0]] if bos is not None else [[3, 4], [5, 0]]
    assert tokens[:2, 0].tolist() == first
    assert lengths[:, 0].tolist() == ([3, 1, 0, 3] if bos is not None else [2, 0, 0, 2])


def test_a_prefix_has_a_batch_dimension():
    step, _ = markov(6, batch=4, steps=6)
    with pytest.raises(ValueError, match=r"prefix must be \[B, P\], got shape \[2\]"):
        searches.greedy(step, start(1, batch=4), max_length=6, prefix=jnp.array([3, 4]), **IDS)


@pytest.mark.parametrize("wrong", [VOCAB, -1])
@pytest.mark.parametrize("method", [*SEARCHES, "forced"])
def test_given_tokens_outside_of_the_vocabulary_are_refused(method, wrong):
    """Where they are known; padding after the length of a prefix may be any token."""
    step, _ = markov(6)
    tokens, lengths = jnp.array([[3, wrong], [4, 5]]), jnp.array([2, 2])

    def run(lengths):
        if method == "forced":
            spread = lambda x: jnp.repeat(x[:, None], 3, 1)
            return decoding.forced(step, start(3), spread(tokens), spread(lengths), bos=BEGIN)
        return SEARCHES[method](step, start(3), max_length=4, prefix=decoding.Prefix(tokens, lengths), **IDS)

    with pytest.raises(ValueError, match=rf"such as a prefix, must be in \[0, V = 6\), got {wrong}"):
        run(lengths)
    assert np.isfinite(run(lengths - jnp.array([1, 0])).log_probs[:, 0]).all()


@pytest.mark.parametrize("method", first(SEARCHES, "beam"))
def test_a_program_keeps_given_tokens(method):
    """In a program they are not known, and a model may have more token vectors than scores."""
    step, _ = markov(6)
    run = quick(lambda words: SEARCHES[method](step, start(3), max_length=4, prefix=words, **IDS))
    found = run(jnp.array([[3, VOCAB], [4, 5]]))
    assert as_tuples(found, 0)[0][:2] == (3, VOCAB)
    assert as_tuples(found, 0)[0][-1] == END


@pytest.mark.full
def test_a_beam_continues_each_prefix():
    """A prefix counts in the length of the score, has no log-probability, and an END in it ends nothing."""
    step, _ = markov(6, batch=4, steps=6)
    given = {"max_length": 6, "max_lengths": jnp.array([6, 5, 6, 3]), "prefix": decoding.Prefix(WORDS, LENGTHS), **IDS}
    found = searches.beam_search(step, start(3, batch=4), beam_size=3, length_penalty=1.0, **given)
    for sentence, number in enumerate(LENGTHS.tolist()):
        for tokens in as_tuples(found, sentence):
            assert tokens[:number] == tuple(WORDS[sentence, :number].tolist()) or tokens == ()
        assert not np.asarray(found.token_log_probs[sentence, :, :number]).any()
    again = decoding.forced(step, start(3, batch=4), found.tokens, found.lengths, bos=BEGIN, prefix_lengths=LENGTHS)
    real = np.isfinite(found.scores)
    np.testing.assert_allclose(found.log_probs[real], again.log_probs[real], rtol=1e-6)
    means = np.asarray(found.log_probs) / np.maximum(found.lengths, 1)
    np.testing.assert_allclose(found.scores[real], means[real], rtol=1e-6)
    assert as_tuples(found, 3) == [(4, 4, 4), (), ()]  # its limit leaves no room
    assert found.scores[3].tolist() == [0.0, -np.inf, -np.inf]
    assert real[:3].all()


def test_limits_are_a_tree_of_the_arrays():
    """So they may be an argument of a program, which is compiled once for all prefixes and limits."""
    run = jax.jit(chex.assert_max_traces(lambda limits: decoding.greedy(markov(7)[0], start(1), limits), n=1))
    for words, most in (([[3, 4], [4, 3]], [6, 5]), ([[5, 4], [3, 3]], [4, 6])):
        prefix = decoding.Prefix(jnp.array(words), jnp.array([2, 1]))
        limits = decoding.Limits(max_length=6, bos=BEGIN, eos=[END, 4], prefix=prefix, max_lengths=jnp.array(most))
        assert limits.eos == (END, 4)
        assert [leaf.shape for leaf in jax.tree.leaves(limits)] == [(2, 2), (2,), (2,)]
        np.testing.assert_array_equal(run(limits).tokens[:, 0, 0], np.array(words)[:, 0])
