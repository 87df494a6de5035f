"""Steps compiled ahead of their first call."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import pytest

from jaxformer.training.phase_timer import PhaseTimer
from jaxformer.training.programs import OutOfMemoryError, Programs
from tests.training.small import STEP, batch, new_state


def test_one_program_for_each_shape():
    timer = PhaseTimer()
    programs = Programs(STEP, timer)
    timer.at("stepping")
    state, want = new_state(), new_state()
    for rows in (8, 4, 8):
        state, metrics = programs(state, batch(0, rows=rows))
        want, expected = STEP(want, batch(0, rows=rows))
        chex.assert_trees_all_equal((state, metrics), (want, expected))
    assert len(programs) == 2
    assert timer.seconds()["compiling"] > timer.seconds()["stepping"] / 100


def test_batches_of_other_structures_and_numbers():
    """Two kinds of batch with arrays of one shape have two programs; numbers that are not arrays need no program each.

    A program of the first kind refused the second, and a number raised an AttributeError, although a jitted step takes
    them.
    """
    plain = lambda batch: batch["text" if batch["image"] is None else "image"] * batch["scale"]

    @jax.jit
    def step(state, batch):
        return dataclasses.replace(state, step=state.step + 1), {"sum": plain(batch).sum()}

    programs, state = Programs(step, PhaseTimer()), new_state()
    for text, image, scale in ((1.0, None, 0.5), (None, 2.0, 0.5), (3.0, None, 0.25)):
        one = {name: x and jnp.full(4, x) for name, x in (("text", text), ("image", image))} | {"scale": scale}
        state, metrics = programs(state, one)
        assert metrics["sum"] == plain(one).sum()
    assert (len(programs), state.step) == (2, 3)


def test_a_step_that_would_be_killed_is_refused():
    programs = Programs(STEP, PhaseTimer(), memory=1000)
    state = new_state()
    with pytest.raises(OutOfMemoryError, match=r"a step on a batch of 8 x 4 needs 0\.0 GB, but there are 0\.0 GB"):
        programs(state, batch(0))
    assert not state.step.is_deleted()


def test_earlier_steps_have_ended_before_another_is_compiled(monkeypatch):
    """A step that runs while the next one compiles would be logged as one that takes no time."""

    @jax.jit
    def slow(state, batch):
        busy = jax.lax.fori_loop(0, 300, lambda _, x: jnp.tanh(x @ x), jnp.ones((300, 300)))
        return dataclasses.replace(state, step=state.step + 1 + (0 * busy[0, 0]).astype(jnp.int32)), {}

    ready = []
    compiled = Programs._compiled

    def look(self, state, batch):
        ready.append(state.step.is_ready())
        return compiled(self, state, batch)

    monkeypatch.setattr(Programs, "_compiled", look)
    programs, state = Programs(slow, PhaseTimer()), new_state()
    for rows in (8, 4, 2):
        state, _ = programs(state, batch(0, rows=rows))
    assert ready == [True, True, True]
