"""Batches that lose their finished sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from tests.decoding.toys import BEGIN, END, VOCAB
from tests.selection import first

BATCH, LENGTH = 40, 12
SEARCHES = {
    "beam": lambda step, state, **given: decoding.beam_search(step, state, beam_size=2, **given),
    "greedy": decoding.greedy,
    "sample": lambda step, state, **given: decoding.sample(step, state, key=jax.random.key(0), **given),
}


@pytest.mark.parametrize("method", first(SEARCHES, "beam"))
def test_complete_sentences_leave_the_batch(method):
    """The result is the same bit for bit; few rows are computed after most sentences are complete."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, VOCAB, VOCAB)), jnp.float32).at[..., END].add(-1)
    limits = jnp.where(jnp.arange(BATCH) % 10 == 7, LENGTH, 2)
    words = jnp.full((BATCH, 3), 4)
    sizes = []

    def step_of(sentences):
        rows = table[sentences]  # what is closed over must be selected, too

        def step(tokens, state):
            jax.debug.callback(lambda: sizes.append(len(sentences)))
            return jnp.take_along_axis(rows, tokens[..., None], 1), decoding.TreeState(state.tree + 1)

        return step

    def run(shrinks):
        given = {"max_lengths": limits, "bos": BEGIN, "eos": END, "step_of_rows": step_of if shrinks else None}
        given |= {"prefix": decoding.Prefix(words, jnp.arange(BATCH) % 3), "transforms": (decoding.no_repeat_ngram(2),)}
        given["transforms"] += (decoding.min_length(jnp.arange(BATCH) % 5 + 5, eos=END),)
        state = decoding.TreeState(jnp.zeros((BATCH, 2), jnp.int32))
        return SEARCHES[method](step_of(jnp.arange(BATCH)), state, max_length=LENGTH, **given)

    plain = jax.jit(run, static_argnums=0)(False)
    jax.effects_barrier()
    assert set(sizes) == {BATCH}
    steps = len(sizes)
    sizes.clear()
    jax.tree.map(np.testing.assert_array_equal, plain, jax.jit(run, static_argnums=0)(True))
    jax.effects_barrier()
    assert len(sizes) == steps
    assert sizes.count(BATCH) == 2
    assert set(sizes) <= {40, 10, 2}
