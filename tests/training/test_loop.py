"""The loop: what it logs, when it validates, saves and stops, and that stopping in between changes nothing."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
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


def test_a_resumed_run_compiles_once(tmp_path):
    with training.Checkpoints(tmp_path) as checkpoints:
        fit(new_state(), 3, outputs=training.Outputs(checkpoints))
        state, _ = checkpoints.restore_latest(abstract(new_state()))
        step = training.make_step(loss, OPTIMIZER)
        assert training.fit(step, state, stream, plan=training.Plan(6)).programs == 1


def test_programs_are_counted():
    step = training.make_step(loss, OPTIMIZER)
    shapes = lambda start: (batch(number, rows=8 if number % 2 else 4) for number in itertools.count(start))
    result = training.fit(step, new_state(), shapes, plan=training.Plan(6))
    assert result.programs == 2


@pytest.mark.parametrize(("every", "steps"), [(4, [4, 8, 10]), (0, [10])])
def test_reports_tokens_and_utilization(every, steps):
    seen = []

    class Reporter:
        def update(self, step, *, loss, tokens_per_second, utilization):
            seen.append((step, tokens_per_second > 0, utilization is not None and utilization > 0))

        def say(self, text): ...
        def close(self): ...

    fit(
        new_state(),
        10,
        flops=lambda b: 1e6,
        outputs=training.Outputs(reporter=Reporter(), peak_flops=1e12),
        plan={"log_every": every},
    )
    assert seen == [(step, True, True) for step in steps]


def test_a_run_out_of_patience_stays_so():
    """Started again, it does not train on."""
    progress = training.Progress(best_score=1.0, best_step=5, validations_since_best=3)
    result = fit(new_state(), 60, plan={"validate_every": 5, "patience": 3}, progress=progress)
    assert (result.reason, int(result.state.step)) == ("patience", 0)


def test_a_metric_that_grows(tmp_path):
    figures = iter([{"bleu": 10.0, "loss": 1.0}, {"bleu": 30.0, "loss": 2.0}, {"bleu": 20.0, "loss": 0.5}])
    plan = {"validate_every": 2, "checkpoint_every": 2, "metric": "bleu", "higher_is_better": True}
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        out = training.Outputs(checkpoints)
        result = fit(new_state(), 6, validate=lambda state: next(figures), outputs=out, plan=plan)
        assert (result.progress.best_score, result.progress.best_step) == (-30.0, 4)
        assert (checkpoints.best_step(), checkpoints.steps()) == (4, [4, 6])
    with pytest.raises(ValueError, match=r"\['loss'\].*'bleu'"):
        fit(new_state(), 2, validate=lambda state: {"loss": 1.0}, plan=plan)


def test_the_best_is_saved_even_between_checkpoints(tmp_path):
    scores = iter([2.0, 1.0, 3.0])
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        fit(
            new_state(),
            9,
            validate=lambda state: {"loss": next(scores)},
            outputs=training.Outputs(checkpoints),
            plan={"validate_every": 3, "checkpoint_every": 100},
        )
        assert checkpoints.best_step() == 6
        assert checkpoints.restore(6, abstract(new_state()))[1]["progress"]["best_score"] == 1.0


def test_the_end_is_saved_without_an_interval(tmp_path):
    with training.Checkpoints(tmp_path) as checkpoints:
        fit(new_state(), 4, outputs=training.Outputs(checkpoints))
        assert checkpoints.steps() == [4]


def test_minutes(tmp_path):
    def slow(start):
        for one in stream(start):
            time.sleep(0.02)
            yield one

    with training.Checkpoints(tmp_path, keep_last=99) as checkpoints:
        plan = {"minutes": 0.3 / 60, "checkpoint_minutes": 0.1 / 60}
        result = fit(new_state(), 10_000, batches=slow, outputs=training.Outputs(checkpoints), plan=plan)
        assert result.reason == "time"
        assert checkpoints.steps()[-1] == int(result.state.step)
        assert 2 <= len(checkpoints.steps()) <= 4


def test_batches_that_end_early():
    with pytest.raises(ValueError, match="ended before step 4; the plan has 9"):
        fit(new_state(), 9, batches=lambda start: itertools.islice(stream(start), 3))


def test_a_second_ctrl_c_does_not_wait():
    before = signal.getsignal(signal.SIGINT)

    def batches(start):
        for i, one in enumerate(stream(start)):
            if i == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            yield one

    with pytest.raises(KeyboardInterrupt):
        fit(new_state(), 50, batches=batches)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_during_the_last_save_does_not_cut_it_short(tmp_path):
    class Slow(training.Checkpoints):
        def wait(self):
            os.kill(os.getpid(), signal.SIGTERM)
            super().wait()

    with training.Checkpoints(tmp_path):
        checkpoints = Slow(tmp_path)
        assert fit(new_state(), 3, outputs=training.Outputs(checkpoints)).reason == "done"
        assert checkpoints.steps() == [3]


def test_skipped_steps_are_counted_and_said(tmp_path):
    said = []

    class Reporter:
        def update(self, step, **figures): ...
        def say(self, text):
            said.append(text)

        def close(self): ...

    step = training.make_step(loss, OPTIMIZER, nonfinite="skip")
    bad = lambda start: (batch(number, nan=number in (2, 4)) for number in itertools.count(start))
    log = JsonLog(tmp_path / "log.jsonl")
    out = training.Outputs(log=log, reporter=Reporter())
    result = training.fit(step, new_state(), bad, plan=training.Plan(6), outputs=out)
    log.close()
    assert result.skipped == 2
    assert said == ["step 3: not finite, skipped (1 so far)", "step 5: not finite, skipped (2 so far)"]
    assert [entry["loss"] is None for entry in read_log(tmp_path / "log.jsonl")] == [s in (3, 5) for s in range(1, 7)]


def test_a_garbled_line_costs_that_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 0.1}\n\0\0\xff\n[]\n{"step": 3, "loss": 0.3}\n{"step": 4, "lo')
    JsonLog(path, step=3).close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]


def test_metrics_are_read_one_step_late():
    """Those of step n when step n + 1 is with the device: the device never waits for the host."""
    events = []

    class Log:
        def write(self, step, **values):
            events.append(("read", step))

        def flush(self): ...

    def watched(state, one):
        events.append(("dispatched", int(one["number"])))
        return STEP(state, one["batch"])

    numbered = lambda start: ({"number": n + 1, "batch": b} for n, b in enumerate(stream(start), start))
    training.fit(watched, new_state(), numbered, plan=training.Plan(3), outputs=training.Outputs(log=Log()))
    assert events == [("dispatched", 1), ("dispatched", 2), ("read", 1), ("dispatched", 3), ("read", 2), ("read", 3)]


PROGRAM = """
import itertools, sys
import jax, jax.numpy as jnp, numpy as np
from jaxformer import training
from jaxformer.training.logging import JsonLog

out, steps = sys.argv[1], 400
optimizer = training.OptimizerConfig(learning_rate=0.01, warmup_steps=10, clip_norm=1.0)
optimizer = training.make_optimizer(optimizer, steps=steps)

def init(key):
    return {"w": jax.random.normal(key, (40, 30))}

def loss(params, batch, key):
    keep = jax.random.bernoulli(key, 0.9, batch.shape)
    error = jnp.where(keep, batch, 0) @ params["w"]
    return jnp.square(error).sum(), jnp.float32(batch.shape[0]), {}

def batches(start):
    for i in itertools.count(start):
        yield np.random.default_rng(i).normal(size=(8, 40)).astype(np.float32)

with training.Checkpoints(out + "/c", keep_last=2) as checkpoints:
    state, progress = training.create(init, optimizer, jax.random.key(0), ema=True), training.Progress()
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    if (found := checkpoints.restore_latest(target)) is not None:
        state, progress = found[0], training.Progress(**found[1]["progress"])
    log = JsonLog(out + "/log.jsonl", step=int(state.step))
    print("started", flush=True)
    training.fit(
        training.make_step(loss, optimizer, ema_decay=0.9), state, batches, progress=progress,
        plan=training.Plan(steps, validate_every=50, checkpoint_every=20),
        validate=lambda state: {"loss": float(jnp.square(state.ema_params["w"]).sum())},
        outputs=training.Outputs(checkpoints, log),
    )
    log.close()
"""


@pytest.mark.faults
def test_killed_at_random_times(tmp_path):
    """Three SIGKILLs: the parameters, moments, averages and the log are those of a run left alone, bit for bit."""

    def start(name):
        return subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / name)], stdout=subprocess.PIPE)

    def logged(name):
        return [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]

    began = time.monotonic()
    whole = start("whole")
    whole.stdout.readline()
    ready = time.monotonic()
    assert whole.wait() == 0
    whole.stdout.close()
    pick, left = random.Random(int(began)), time.monotonic() - ready
    for _ in range(3):
        process = start("killed")
        process.stdout.readline()
        time.sleep(pick.uniform(0, left * 0.7))
        process.kill()
        process.communicate()
    process = start("killed")
    process.communicate(timeout=120)
    assert process.returncode == 0

    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    optimizer = training.make_optimizer(training.OptimizerConfig(clip_norm=1.0), steps=400)
    shapes = jax.eval_shape(
        lambda: training.create(lambda key: {"w": jnp.zeros((40, 30))}, optimizer, jax.random.key(0), ema=True)
    )
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
    states = []
    for name in ("whole", "killed"):
        with training.Checkpoints(tmp_path / name / "c") as checkpoints:
            states.append(jax.tree.map(np.asarray, checkpoints.restore(400, target)[0]))
    assert equal(*states)
    assert logged("killed") == logged("whole")
    assert [e["step"] for e in logged("killed") if "loss" in e] == list(range(1, 401))
