"""Batches that lose their finished sentences, and caches that grow."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, VOCAB, markov, start
from tests.models.small import SOURCE, SOURCE_VALID, SOURCES, model
from tests.selection import first

BATCH, LENGTH = 40, 12
SEARCHES = {
    "beam": lambda step, state, **given: searches.beam_search(step, state, beam_size=2, **given),
    "greedy": searches.greedy,
    "sample": lambda step, state, **given: searches.sample(step, state, key=jax.random.key(0), **given),
}


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


@pytest.mark.parametrize("kind", first(KINDS, "alone", "stacked"))
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
    whole, _ = searched("greedy", "alone", (), read=True)
    grown, steps = searched("greedy", "alone", CAPACITIES, read=True)
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
    bound = small.net.bind(small.params)
    context, state = bound.start(bound.encode(SOURCE), beam_size=2, length=2)
    read = lambda tokens, state, lengths: bound.prefill(tokens, state, context, lengths=lengths)[1]
    prefix = decoding.Prefix(jnp.full((2, 3), 4), read=read)
    step = lambda tokens, state: bound.step(tokens, state, context)
    with pytest.raises(ValueError, match=message):
        searches.greedy(step, state, max_length=4, bos=1, eos=2, prefix=prefix, capacities=capacities)


def test_a_traced_beam_has_all_its_room_at_once():
    """The state around the cache may hold arrays of numpy, whose own `resize` is another one."""
    small = model("post")
    bound = small.net.bind(small.params)
    memory = bound.encode(SOURCES)

    def run(length, **given):
        context, state = bound.start(memory, beam_size=2, length=length)
        state = decoding.CoverageState(state, np.zeros((2, 2, SOURCE.shape[1]), np.float32), 0.0)

        def step(tokens, state):
            logits, inner = bound.step(tokens, state.state, context)
            return logits, state.attending(1, inner)

        given |= {"max_length": 4, "bos": 1, "eos": 2, "trace": decoding.BeamTrace()}
        return searches.beam_search(step, state, beam_size=2, **given)

    grown, whole = run(2, capacities=(2, 4)), run(4)
    chex.assert_trees_all_equal(grown, whole)
    assert np.isfinite(np.asarray(grown.scores)).all()


def test_a_state_without_room_does_not_grow():
    with pytest.raises(ValueError, match=r"must ascend from that of the state, None, got \[2, 4\]"):
        searches.greedy(markov(0)[0], start(1), max_length=4, bos=BEGIN, eos=END, capacities=(2, 4))
