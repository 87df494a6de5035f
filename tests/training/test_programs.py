"""Steps compiled ahead of their first call."""

import pytest

from jaxformer.training.phase_timer import PhaseTimer
from jaxformer.training.programs import OutOfMemoryError, Programs
from tests.training.small import STEP, batch, equal, new_state


def test_one_program_for_each_shape():
    timer = PhaseTimer()
    programs = Programs(STEP, timer)
    timer.at("stepping")
    state, want = new_state(), new_state()
    for rows in (8, 4, 8):
        state, metrics = programs(state, batch(0, rows=rows))
        want, expected = STEP(want, batch(0, rows=rows))
        assert equal((state, metrics), (want, expected))
    assert len(programs) == 2
    assert timer.seconds()["compiling"] > timer.seconds()["stepping"] / 100


def test_a_step_that_would_be_killed_is_refused():
    programs = Programs(STEP, PhaseTimer(), memory=1000)
    state = new_state()
    with pytest.raises(OutOfMemoryError, match=r"a step on a batch of 8 x 4 needs 0\.0 GB, but there are 0\.0 GB"):
        programs(state, batch(0))
    assert not state.step.is_deleted()
