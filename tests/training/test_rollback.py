"""A batch that is not finite, left out after going back: the run is the one that never had it."""

import contextlib
import itertools

import pytest

from jaxformer import training
from jaxformer.training.logging import JsonLog, read_log
from tests.training.test_loop import STEP
from tests.training.test_step import batch, equal, new_state


def stream(bad):
    """Batch 0, 1, ... of a plan, of which some are not finite."""
    return lambda start: (batch(number, nan=number in bad) for number in itertools.count(start))


def without(bad):
    good = [number for number in range(40) if number not in bad]
    return lambda start: (batch(number) for number in good[start:])


def fit(folder, batches, steps=20, rollbacks=2, state=None, progress=None):
    with training.Checkpoints(folder / "checkpoints") as checkpoints:
        state = new_state() if state is None else state
        plan = training.Plan(steps, checkpoint_every=4, rollbacks=rollbacks)
        with contextlib.closing(JsonLog(folder / "log.jsonl", step=int(state.step))) as log:
            out = training.Outputs(checkpoints, log)
            return training.fit(STEP, state, batches, plan=plan, outputs=out, progress=progress)


@pytest.mark.parametrize("bad", [{5}, {4, 5}, {6, 13}, {17, 18}], ids=str)
def test_the_run_is_the_one_without_these_batches(bad, tmp_path):
    """Two in one stretch between checkpoints, one in each of two, and at the end; the log holds every step once."""
    found, want = fit(tmp_path / "a", stream(bad)), fit(tmp_path / "b", without(bad))
    assert equal(found.state, want.state)
    assert found.progress.left_out == sorted(bad)
    logs = [read_log(tmp_path / name / "log.jsonl") for name in "ab"]
    assert logs[0] == logs[1]
    assert [row["step"] for row in logs[0]] == list(range(1, 21))


def test_a_resumed_run_leaves_them_out_too(tmp_path):
    half = fit(tmp_path / "a", stream({5}), steps=12)
    found = fit(tmp_path / "a", stream({5}), state=half.state, progress=half.progress)
    assert equal(found.state, fit(tmp_path / "b", without({5})).state)


def test_what_does_not_pass_is_an_error(tmp_path):
    """Three in a row are more than two; and there is nothing to go back to before the first checkpoint."""
    with pytest.raises(training.NonFiniteError, match="step 6, batch 7: "):
        fit(tmp_path / "a", stream({5, 6, 7}))
    with pytest.raises(training.NonFiniteError, match="step 3, batch 2: "):
        fit(tmp_path / "b", stream({2}))
    with pytest.raises(training.NonFiniteError, match="step 6, batch 5: "):
        fit(tmp_path / "c", stream({5}), rollbacks=0)
