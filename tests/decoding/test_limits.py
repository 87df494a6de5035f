"""Prefixes that are read in one pass, batches that lose their finished sentences, and caches that grow."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, models
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, PAD, VOCAB, as_tuples, markov, start
from tests.models.small import SOURCE, SOURCE_VALID, SOURCES, model
from tests.modules.small import quick
from tests.selection import first

IDS = {"bos": BEGIN, "eos": END, "pad": PAD}
WORDS = jnp.array([[3, 4, END], [5, 0, 0], [4, 9, 9], [4, 4, 4]])
LENGTHS = jnp.array([3, 1, 0, 3])


SEARCHES = {
    "greedy": searches.greedy,
    "beam": lambda step, state, **given: searches.beam_search(step, state, beam_size=2, **given),
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
        results.append(SEARCHES[method](step, start(2, batch=4), **given))
    chex.assert_trees_all_equal(*results)
    ((tokens, lengths),) = seen
    first = [[BEGIN, 3, 4], [BEGIN, 5, 0]] if bos is not None else [[3, 4], [5, 0]]
    assert tokens[:2, 0].tolist() == first
    assert lengths[:, 0].tolist() == ([3, 1, 0, 3] if bos is not None else [2, 0, 0, 2])


@pytest.mark.parametrize("wrong", [VOCAB, -1])
@pytest.mark.parametrize("method", first([*SEARCHES, "forced"], "beam", "forced"))
def test_given_tokens_outside_of_the_vocabulary_are_refused(method, wrong):
    """Where they are known; padding after the length of a prefix may be any token."""
    step, _ = markov(6)
    tokens, lengths = jnp.array([[3, wrong], [4, 5]]), jnp.array([2, 2])

    def run(lengths):
        if method == "forced":
            spread = lambda x: jnp.repeat(x[:, None], 2, 1)
            return decoding.forced(step, start(2), spread(tokens), spread(lengths), bos=BEGIN)
        return SEARCHES[method](step, start(2), max_length=4, prefix=decoding.Prefix(tokens, lengths), **IDS)

    with pytest.raises(ValueError, match=rf"such as a prefix, must be in \[0, V = 6\), got {wrong}"):
        run(lengths)
    assert np.isfinite(run(lengths - jnp.array([1, 0])).log_probs[:, 0]).all()


@pytest.mark.parametrize("method", first(SEARCHES, "beam"))
def test_a_program_keeps_given_tokens(method):
    """In a program they are not known, and a model may have more token vectors than scores."""
    step, _ = markov(6)
    run = quick(lambda words: SEARCHES[method](step, start(2), max_length=4, prefix=words, **IDS))
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


BATCH, LENGTH = 40, 12


@pytest.mark.parametrize("method", first(SEARCHES, "beam"))
def test_complete_sentences_leave_the_batch(method):
    """The result is the same bit for bit; few rows are computed after most sentences are complete."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, VOCAB, VOCAB)), jnp.float32).at[..., END].add(-1)
    limits = jnp.where(jnp.arange(BATCH) % 10 == 7, LENGTH, 2)
    words = jnp.full((BATCH, 3), 4)
    sizes = []

    class Rows(NamedTuple):
        logits: jax.Array

        def take(self, rows):
            return Rows(self.logits[rows])

    def step(tokens, state, rows):
        jax.debug.callback(lambda: sizes.append(len(rows.logits)))
        return jnp.take_along_axis(rows.logits, tokens[..., None], 1), decoding.TreeState(state.tree + 1)

    def run(shrinks):
        given = {"max_lengths": limits, "bos": BEGIN, "eos": END}
        given |= {"prefix": decoding.Prefix(words, jnp.arange(BATCH) % 3), "transforms": (decoding.no_repeat_ngram(2),)}
        given["transforms"] += (decoding.min_length(jnp.arange(BATCH) % 5 + 5, eos=END),)
        state = decoding.TreeState(jnp.zeros((BATCH, 2), jnp.int32))
        whole = decoding.ContextStep(step, Rows(table))
        own = whole if shrinks else lambda tokens, state: whole(tokens, state)
        return SEARCHES[method](own, state, max_length=LENGTH, **given)

    plain = jax.jit(run, static_argnums=0)(False)
    jax.effects_barrier()
    assert set(sizes) == {BATCH}
    steps = len(sizes)
    sizes.clear()
    chex.assert_trees_all_equal(plain, jax.jit(run, static_argnums=0)(True))
    jax.effects_barrier()
    assert len(sizes) == steps
    assert sizes.count(BATCH) == 2
    assert set(sizes) <= {40, 10, 2}


CAPACITIES = (2, 3, 6)
KINDS = ["alone", "stacked", "ensemble", "coverage"]


@functools.cache
def searched(method, kind, capacities, read=False):
    """The hypotheses of a small Transformer, and the capacity of the state in each step."""
    small, steps = model("post"), []
    model_of = lambda: small.net.bind(small.params)

    def counted(step):
        def counting(tokens, state):
            jax.debug.callback(lambda capacity=state.capacity: steps.append(capacity))
            return step(tokens, state)

        return counting

    def run():
        memory = model_of().encode(SOURCES)
        context, state = model_of().start(memory, beam_size=2, length=capacities[0] if capacities else 6)
        step = lambda tokens, state: model_of().step(tokens, state, context)
        if kind == "stacked":
            state = decoding.StackedState(jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), state))
            step = decoding.stacked_ensemble(lambda _, tokens, state: step_alone(tokens, state), jnp.zeros(2))
            step_alone = lambda tokens, state: model_of().step(tokens, state, context)
        elif kind == "ensemble":
            state, step = decoding.EnsembleState((state, state)), decoding.ensemble([step, step])
        elif kind == "coverage":
            state = decoding.CoverageState.start(state, SOURCE_VALID, penalty=0.0)
            step = covering(context)
        prefix = jnp.array([[3, 4], [5, 0]])
        reader = lambda tokens, state, lengths: model_of().prefill(tokens, state, context, lengths=lengths)[1]
        prefix = decoding.Prefix(prefix, jnp.array([2, 1]), reader if read else None)
        given = {"max_length": 6, "bos": 1, "eos": 2, "pad": 0, "prefix": prefix, "capacities": capacities}
        return SEARCHES[method](counted(step), state, transforms=decoding.min_length(6, eos=2), **given)

    def covering(context):
        def step(tokens, state):
            logits, weights, inner = model_of().attending_step(tokens, state.state, context)
            return logits, state.attending(weights, inner)

        return step

    found = jax.jit(run)()
    jax.effects_barrier()
    return found, steps


@pytest.mark.parametrize("kind", first(KINDS, "alone"))
@pytest.mark.parametrize("method", first(SEARCHES, "beam"))
def test_a_cache_grows_when_it_is_full(method, kind):
    """The result is that of a cache with all its room from the beginning."""
    whole, steps = searched(method, kind, ())
    assert steps == [6] * 6
    grown, steps = searched(method, kind, CAPACITIES)
    assert steps == [2, 2, 3, 6, 6, 6]
    np.testing.assert_array_equal(grown.tokens, whole.tokens)
    assert len(np.unique(whole.tokens)) > 3
    for name in ("log_probs", "scores", "token_log_probs"):
        np.testing.assert_allclose(getattr(grown, name), getattr(whole, name), atol=1e-5, err_msg=name)


def test_a_prefix_fills_a_cache_in_one_pass():
    """A longer prefix than that of the other row does not take another row's room."""
    whole, _ = searched("beam", "alone", ())
    grown, steps = searched("beam", "alone", CAPACITIES, read=True)
    assert steps == [3, 6, 6, 6, 6]
    np.testing.assert_array_equal(grown.tokens, whole.tokens)


@pytest.mark.parametrize(
    ("capacities", "message"),
    [
        ((3, 6), r"must ascend from that of the state, 2, got \[3, 6\]"),
        ((2, 6, 3), r"must ascend from that of the state, 2, got \[2, 6, 3\]"),
        ((2, 2, 6), r"must ascend from that of the state, 2"),
        ((2, 3), r"reads up to 4 tokens, but the state has room for 3"),
        ((2, 4), r"must hold the 3 tokens of the prefix"),
    ],
)
def test_capacities_are_checked(capacities, message):
    small = model("post")

    def run():
        bound = small.net.bind(small.params)
        context, state = bound.start(bound.encode(SOURCE), beam_size=2, length=2)
        read = lambda tokens, state, lengths: bound.prefill(tokens, state, context, lengths=lengths)[1]
        prefix = decoding.Prefix(jnp.full((2, 3), 4), read=read)
        step = lambda tokens, state: bound.step(tokens, state, context)
        return searches.greedy(step, state, max_length=4, bos=1, eos=2, prefix=prefix, capacities=capacities)

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(run)


@pytest.mark.full
def test_a_traced_beam_has_all_its_room_at_once():
    """The state around the cache may hold arrays of numpy, whose own `resize` is another one."""
    small = model("post")
    memory = small.call(models.EncoderDecoder.encode, small.params, SOURCES)

    def run(length, **given):
        sizes = {"beam_size": 2, "length": length}
        context, state = small.call(models.EncoderDecoder.start, small.params, memory, **sizes)
        state = decoding.CoverageState(state, np.zeros((2, 2, SOURCE.shape[1]), np.float32), 0.0)

        def step(tokens, state):
            given = tokens, state.state, context
            logits, inner = jax.jit(small._call, static_argnums=0)(models.EncoderDecoder.step, small.params, *given)
            return logits, state.attending(1, inner)

        given |= {"max_length": 4, "bos": 1, "eos": 2, "trace": decoding.BeamTrace()}
        return searches.beam_search(step, state, beam_size=2, **given)

    grown, whole = run(2, capacities=(2, 4)), run(4)
    chex.assert_trees_all_equal(grown, whole)
    assert np.isfinite(np.asarray(grown.scores)).all()
