"""The loop: what it logs, when it validates, saves and stops, and that stopping in between changes nothing."""

import itertools
import os
import signal

import jax
import pytest

from jaxformer import training
from jaxformer.training.logging import JsonLog, read_log
from tests.training.test_step import OPTIMIZER, batch, equal, loss, new_state

STEP = training.make_step(loss, OPTIMIZER)


def stream(start):
    return (batch(number) for number in itertools.count(start))


def abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def fit(state, steps, **options):
    plan = training.Plan(steps, **options.pop("plan", {}))
    return training.fit(STEP, state, options.pop("batches", stream), plan=plan, **options)


def test_resumed_run_is_the_same_run(tmp_path):
    """Stopped at 7 of 20 and restored: parameters, moments and log equal an uninterrupted run's, bit for bit."""
    whole = fit(new_state(), 20).state
    log = tmp_path / "log.jsonl"
    with training.Checkpoints(tmp_path / "c") as checkpoints:
        for steps in (7, 20):
            restored = checkpoints.restore_latest(abstract(new_state()))
            state = new_state() if restored is None else restored[0]
            out = training.Outputs(checkpoints, JsonLog(log, step=int(state.step)))
            result = fit(state, steps, outputs=out, plan={"checkpoint_every": 5})
            out.log.close()
    assert equal(whole, result.state)
    assert [entry["step"] for entry in read_log(log)] == list(range(1, 21))


def test_log_forgets_what_was_not_saved(tmp_path):
    """A process killed after step 9, whose last checkpoint is step 5: the next one writes 6 to 9 again, once."""
    path = tmp_path / "log.jsonl"
    log = JsonLog(path)
    for step in range(1, 10):
        log.write(step, loss=float(step))
    log.close()
    path.write_text(path.read_text() + '{"step": 10, "lo')
    log = JsonLog(path, step=5)
    log.write(6, loss=0.5)
    log.close()
    assert [entry["step"] for entry in read_log(path)] == [1, 2, 3, 4, 5, 6]
    assert read_log(path)[-1]["loss"] == 0.5


def test_patience_and_best(tmp_path):
    scores = iter([3.0, 2.0, 2.5, 2.6, 2.7, 0.0])
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        result = fit(
            new_state(),
            60,
            validate=lambda state: {"loss": next(scores)},
            outputs=training.Outputs(checkpoints),
            plan={"validate_every": 5, "checkpoint_every": 5, "patience": 3},
        )
        assert (result.reason, int(result.state.step)) == ("patience", 25)
        assert (result.progress.best_score, result.progress.best_step) == (2.0, 10)
        assert checkpoints.best_step() == 10
        assert checkpoints.steps() == [10, 25]
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:  # the best is known to a new process too
        assert checkpoints.best_step() == 10
        _, about = checkpoints.restore(25, abstract(new_state()))
        assert about["progress"]["validations_since_best"] == 3


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_signals_save_and_stop(tmp_path, number, reason):
    def batches(start):
        for i, one in enumerate(stream(start)):
            if i == 4:
                os.kill(os.getpid(), number)
            yield one

    with training.Checkpoints(tmp_path) as checkpoints:
        result = fit(
            new_state(), 50, batches=batches, outputs=training.Outputs(checkpoints), plan={"checkpoint_every": 100}
        )
        assert (result.reason, int(result.state.step)) == (reason, 5)
        assert checkpoints.steps() == [5]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_nonfinite_names_the_step():
    def batches(start):
        return (batch(number, nan=number == 3) for number in itertools.count(start))

    with pytest.raises(training.NonFiniteError, match="step 4"):
        fit(new_state(), 10, batches=batches)


def test_programs_are_counted():
    step = training.make_step(loss, OPTIMIZER)
    shapes = lambda start: (batch(number, rows=8 if number % 2 else 4) for number in itertools.count(start))
    result = training.fit(step, new_state(), shapes, plan=training.Plan(6))
    assert result.programs == 2


def test_reports_tokens_and_utilisation():
    seen = []

    class Reporter:
        def update(self, step, *, loss, tokens_per_second, utilisation):
            seen.append((step, tokens_per_second > 0, utilisation is not None and utilisation > 0))

        def say(self, text): ...
        def close(self): ...

    fit(
        new_state(),
        10,
        work=lambda b: training.Work(8, 1e6),
        outputs=training.Outputs(reporter=Reporter(), peak_flops=1e12),
        plan={"log_every": 4},
    )
    assert seen == [(4, True, True), (8, True, True), (10, True, True)]
