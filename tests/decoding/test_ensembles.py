"""Ensembles against one table that holds the mean of their tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, LENGTH, log_softmax, markov, plain, start
from tests.selection import first

SEEDS = (0, 1, 2)
OPTIONS = {"beam_size": 4, "max_length": LENGTH, "bos": BEGIN, "eos": END}


def mean_model(tables, average):
    """A single model with the mean of the tables."""
    log_probs = np.stack([log_softmax(table) for table in tables])
    mean = log_probs.mean(0) if average == "log" else np.log(np.exp(log_probs).mean(0))

    @plain
    def step(tokens, state):
        logits = jnp.asarray(mean, jnp.float32)[state["sentence"], jnp.minimum(state["step"], 2), tokens]
        return logits, {**state, "step": state["step"] + 1}

    return step


def stacked(table, tokens, state):
    """The step of `markov` as a function of its table."""
    tree = state.tree
    logits = table[tree["sentence"], jnp.minimum(tree["step"], 2), tokens]
    return logits, decoding.TreeState({**tree, "step": tree["step"] + 1})


@pytest.mark.parametrize("average", first(["log", "probability"], "probability"))
def test_an_ensemble_averages_its_models(average):
    """Several models, or one whose parameters are stacked: the same hypotheses and scores."""
    steps, tables = zip(*(markov(seed) for seed in SEEDS), strict=True)
    search = lambda step, state: jax.jit(lambda state: searches.beam_search(step, state, **OPTIONS))(state)
    expected = search(mean_model(tables, average), start(4))
    several = decoding.ensemble(steps, average=average)
    found = search(several, decoding.EnsembleState((start(4),) * 3))
    together = decoding.stacked_ensemble(stacked, jnp.asarray(np.stack(tables)), average=average)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), start(4))
    fused = search(together, decoding.StackedState(states))
    for result in (found, fused):
        np.testing.assert_array_equal(result.tokens, expected.tokens)
        np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
    one = search(steps[0], start(4))
    assert not np.array_equal(one.tokens, found.tokens)


def test_states_of_ensembles_follow_hypotheses_and_sentences():
    """Every model's state is reordered in the same way, and keeps only the chosen sentences."""
    leaves = jnp.arange(8).reshape(2, 4)
    several = decoding.EnsembleState((decoding.TreeState(leaves), decoding.TreeState(leaves + 100)))
    fused = decoding.StackedState(decoding.TreeState(jnp.stack([leaves, leaves + 100])))
    parents = jnp.array([[3, 3, 0, 1], [0, 0, 0, 2]])
    expected = [[4, 4, 4, 6]]
    assert several.shape == fused.shape == (2, 4)
    moved = several.reorder(parents).take(jnp.array([1]))
    assert [state.tree.tolist() for state in moved.states] == [expected, (np.array(expected) + 100).tolist()]
    again = fused.reorder(parents).take(jnp.array([1]))
    assert again.states.tree.tolist() == [expected, (np.array(expected) + 100).tolist()]
    assert again.shape == moved.shape == (1, 4)
