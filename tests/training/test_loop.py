"""The loop: what it logs, when it validates, saves and stops; stopping and resuming changes nothing."""

import dataclasses
import inspect
import itertools
import json
import random
import subprocess
import sys
import time
import types
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import training
from jaxformer.errors import ConfigError
from jaxformer.multihost import processes
from jaxformer.training import phase_timer
from jaxformer.training.logging import JsonLog, read_log
from jaxformer.training.loop import _Clock
from jaxformer.training.recorder import MEASURED
from tests.training.small import OPTIMIZER, STEP, abstract, batch, fit, loss, new_state, settings, stream, with_bad


def test_resumed_run_is_the_same_run(tmp_path):
    """Stopped at 7 of 20 and restored: parameters, moments and log equal an uninterrupted run's, bit for bit."""
    whole = fit(new_state(), 20).state
    log = tmp_path / "log.jsonl"
    with training.Checkpoints(tmp_path / "c") as checkpoints:
        for steps in (7, 20):
            restored = checkpoints.restore_latest(abstract(new_state()))
            state = new_state() if restored is None else restored[0]
            result = fit(state, steps, checkpoints=checkpoints, hooks=[JsonLog(log)], config={"checkpoint_every": 5})
    chex.assert_trees_all_equal(whole, result.state)
    assert [entry["step"] for entry in read_log(log)] == list(range(1, 21))


def test_an_earlier_step_does_not_continue_beside_later_ones(tmp_path):
    """Their folder would mix two trainings, and the later steps would count as the newest."""
    outputs = lambda checkpoints: {"checkpoints": checkpoints, "config": {"checkpoint_every": 2}}
    with training.Checkpoints(tmp_path) as checkpoints:
        whole = fit(new_state(), 8, **outputs(checkpoints)).state
        earlier, _ = checkpoints.restore(4, abstract(new_state()))
        for start, state in ((0, new_state()), (4, earlier)):
            with pytest.raises(
                training.CheckpointError, match=f"cannot train from step {start}: .* already holds steps"
            ):
                fit(state, 10, **outputs(checkpoints))
        for step, later in ((5, "steps 6, 8"), (8, "step 8")):
            with pytest.raises(training.CheckpointError, match=f"cannot save step {step}: .* holds {later}: restore"):
                checkpoints.save(step, earlier, {})
        assert checkpoints.steps() == [2, 4, 6, 8]
        assert fit(earlier, 3, **outputs(checkpoints)).reason == "done"
    for step in (6, 8):
        (tmp_path / str(step)).rename(tmp_path / f"away-{step}")
    with training.Checkpoints(tmp_path) as checkpoints:
        earlier, _ = checkpoints.restore_latest(abstract(new_state()))
        chex.assert_trees_all_equal(whole, fit(earlier, 8, **outputs(checkpoints)).state)
        assert checkpoints.steps() == [2, 4, 6, 8]


def test_patience_and_best(tmp_path):
    scores = iter([3.0, 2.0, 2.5, 2.6, 2.7, 0.0])
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        result = fit(
            new_state(),
            60,
            validate=lambda state: {"loss": next(scores)},
            checkpoints=checkpoints,
            config={"validate_every": 5, "checkpoint_every": 5, "patience": 3},
        )
        assert (result.reason, int(result.state.step)) == ("patience", 25)
        assert (result.progress.best_score, result.progress.best_step) == (2.0, 10)
        assert checkpoints.best_step() == 10
        assert checkpoints.steps() == [10, 25]
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:  # the best is known to a new process too
        assert checkpoints.best_step() == 10
        _, about = checkpoints.restore(25, abstract(new_state()))
        assert about["progress"]["validations_since_best"] == 3


def test_metrics_may_be_arrays(tmp_path):
    """As a validation in JAX computes them; the log and the checkpoints hold numbers."""
    with training.Checkpoints(tmp_path / "c") as checkpoints:
        outputs = {"checkpoints": checkpoints, "hooks": [JsonLog(tmp_path / "log.jsonl")]}
        given = {"validate": lambda state: {"loss": jnp.float32(0.5)}, "config": {"validate_every": 2}}
        assert fit(new_state(), 2, **outputs, **given).progress.best_score == 0.5
        assert checkpoints.about(2)["score"] == 0.5
    assert read_log(tmp_path / "log.jsonl")[-1] == {"step": 2, "validation_loss": 0.5}


def test_a_resumed_run_compiles_once(tmp_path):
    with training.Checkpoints(tmp_path) as checkpoints:
        fit(new_state(), 3, checkpoints=checkpoints)
        state, _ = checkpoints.restore_latest(abstract(new_state()))
        step = training.make_step(loss, OPTIMIZER)
        assert training.fit(step, state, stream, config=settings(6)).programs == 1


def test_programs_are_counted():
    step = training.make_step(loss, OPTIMIZER)
    shapes = lambda start: (batch(number, rows=8 if number % 2 else 4) for number in itertools.count(start))
    result = training.fit(step, new_state(), shapes, config=settings(6))
    assert result.programs == 2


def test_a_run_that_stopped_by_patience_stays_stopped():
    """Started again, it does not train further."""
    progress = training.Progress(best_score=1.0, best_step=5, validations_since_best=3)
    result = fit(new_state(), 60, config={"validate_every": 5, "patience": 3}, progress=progress)
    assert (result.reason, int(result.state.step)) == ("patience", 0)


def test_a_metric_that_grows(tmp_path):
    metrics = iter([{"bleu": 10.0, "loss": 1.0}, {"bleu": 30.0, "loss": 2.0}, {"bleu": 20.0, "loss": 0.5}])
    config = {"validate_every": 2, "checkpoint_every": 2, "metric": "bleu"}
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        given = {"validate": lambda state: next(metrics), "maximize": True, "checkpoints": checkpoints}
        result = fit(new_state(), 6, config=config, **given)
        assert (result.progress.best_score, result.progress.best_step) == (-30.0, 4)
        assert (checkpoints.best_step(), checkpoints.steps()) == (4, [4, 6])
    with pytest.raises(ConfigError, match=r"one of the validation's metrics \['accuracy', 'loss'\], got 'bleu'"):
        fit(new_state(), 4, validate=lambda state: {"loss": 1.0, "accuracy": 0.5}, config=config)


def test_the_best_step_is_saved_even_between_checkpoints(tmp_path):
    scores = iter([2.0, 1.0, 3.0])
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        fit(
            new_state(),
            9,
            validate=lambda state: {"loss": next(scores)},
            checkpoints=checkpoints,
            config={"validate_every": 3, "checkpoint_every": 100},
        )
        assert checkpoints.best_step() == 6
        assert checkpoints.restore(6, abstract(new_state()))[1]["progress"]["best_score"] == 1.0


def test_minutes(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=time.time, gmtime=time.gmtime, strftime=time.strftime)
    monkeypatch.setattr(phase_timer, "time", clock)
    now = [100.0]

    def slow(start):
        for one in stream(start):
            now[0] += 6.0
            yield one

    with training.Checkpoints(tmp_path, keep_last=99) as checkpoints:
        config = {"minutes": 0.75, "checkpoint_minutes": 0.25}
        result = fit(new_state(), 10_000, batches=slow, checkpoints=checkpoints, config=config)
        assert (result.reason, int(result.state.step)) == ("time", 8)
        assert checkpoints.steps() == [3, 6, 8]


def test_minutes_count_from_the_beginning_of_the_work():
    """Reading and restoring take time of a limited job, too."""
    timer = training.PhaseTimer(began=time.monotonic() - 100)
    result = fit(new_state(), 9, hooks=[timer], config={"minutes": 1.0})
    assert (result.reason, int(result.state.step)) == ("time", 1)


def test_several_processes_look_at_the_clock_often(monkeypatch):
    """Independent of the interval of reports."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "broadcast", lambda answer: answer)
    clock = _Clock(settings(99, minutes=1.0, log_every=1000), training.PhaseTimer(began=time.monotonic() - 100))
    assert [number for number in range(1, 40) if clock.is_up(number)] == [10, 20, 30]


def test_batches_that_end_early():
    with pytest.raises(ValueError, match="ended before step 4; training has 9"):
        fit(new_state(), 9, batches=lambda start: itertools.islice(stream(start), 3))


# A batch that is not finite, left out after going back: the run is the one that never had it.


def without(bad):
    good = [number for number in range(40) if number not in bad]
    return lambda start: (batch(number) for number in good[start:])


def fit_in(folder, batches, steps=20, nonfinite="rollback", state=None, progress=None, step=STEP):
    with training.Checkpoints(folder / "checkpoints") as checkpoints:
        state = new_state() if state is None else state
        config = settings(steps, checkpoint_every=4, nonfinite=nonfinite)
        outputs = {"checkpoints": checkpoints, "hooks": [JsonLog(folder / "log.jsonl")]}
        return training.fit(step, state, batches, config=config, progress=progress, **outputs)


@pytest.mark.full
@pytest.mark.parametrize("bad", [{5}, {4, 5}, {6, 13}, {17, 18}], ids=str)
def test_the_run_is_the_one_without_these_batches(bad, tmp_path):
    """Two in one stretch between checkpoints, one in each of two, and at the end; the log holds every step once."""
    found, want = fit_in(tmp_path / "a", with_bad(*bad)), fit_in(tmp_path / "b", without(bad))
    chex.assert_trees_all_equal(found.state, want.state)
    assert found.progress.left_out == sorted(bad)
    timed = [read_log(tmp_path / name / "log.jsonl") for name in "ab"]
    logs = [[{name: x for name, x in row.items() if name not in MEASURED} for row in log] for log in timed]
    assert logs[0] == logs[1]
    assert [row["step"] for row in logs[0]] == list(range(1, 21))


@pytest.mark.full
def test_a_resumed_run_leaves_them_out_too(tmp_path):
    half = fit_in(tmp_path / "a", with_bad(5), steps=12)
    found = fit_in(tmp_path / "a", with_bad(5), state=half.state, progress=half.progress)
    chex.assert_trees_all_equal(found.state, fit_in(tmp_path / "b", without({5})).state)


def test_the_state_is_freed_before_another_is_read(tmp_path, monkeypatch):
    """A device that trains a model of half its memory can go back."""
    held, alive = [], []

    def step(state, batch):
        state, metrics = STEP(state, batch)
        held.extend(weakref.ref(leaf) for leaf in jax.tree.leaves(state))
        return state, metrics

    def restore(self, target, read=training.Checkpoints.restore_latest):
        alive.append(sum(ref() is not None for ref in held))
        return read(self, target)

    monkeypatch.setattr(training.Checkpoints, "restore_latest", restore)
    fit_in(tmp_path, with_bad(5, 13), step=step)
    assert alive == [0, 0]


def test_going_back_to_a_save_of_the_caller(tmp_path):
    """A save before the first step, of a state with arrays of numpy, is enough to go back to."""
    state = dataclasses.replace(new_state(), params=jax.device_get(new_state().params))
    with training.Checkpoints(tmp_path / "a" / "checkpoints") as checkpoints:
        checkpoints.save(0, state, {})
    found, want = fit_in(tmp_path / "a", with_bad(0), 3, state=state), fit_in(tmp_path / "b", without({0}), 3)
    chex.assert_trees_all_equal(found.state, want.state)
    assert found.progress.left_out == [0]


def test_too_many_nonfinite_steps_are_an_error(tmp_path):
    """Four in a row are more than three; and before the first checkpoint, training cannot go back."""
    with pytest.raises(training.NonFiniteError, match="step 6, batch 8: "):
        fit_in(tmp_path / "a", with_bad(5, 6, 7, 8))
    with pytest.raises(training.NonFiniteError, match=r"step 3, batch 2: .*; there is no checkpoint to go back to"):
        fit_in(tmp_path / "b", with_bad(2))
    with pytest.raises(training.NonFiniteError, match="step 6, batch 5: "):
        fit_in(tmp_path / "c", with_bad(5), nonfinite="abort")


PROGRAM = """
import itertools, sys
import jax, jax.numpy as jnp, numpy as np
from jaxformer import training
from jaxformer.training import phase_timer
from jaxformer.training.logging import JsonLog

out, steps = sys.argv[1], 400
optimizer = training.AdamConfig(learning_rate=0.01, warmup_steps=10, clip_norm=1.0)
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
    print("started", flush=True)
    training.fit(
        training.make_step(loss, optimizer, ema_decay=0.9), state, batches, progress=progress,
        config=training.TrainConfig(steps, validate_every=50, checkpoint_every=20),
        validate=lambda state: {"loss": float(jnp.square(state.ema_params["w"]).sum())},
        checkpoints=checkpoints,
        hooks=[JsonLog(out + "/log.jsonl")],
    )
"""


@pytest.mark.faults
def test_killed_at_random_times(tmp_path):
    """Three SIGKILLs: parameters, moments, averages and log equal those of an uninterrupted run, bit for bit."""

    def start(name):
        return subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / name)], stdout=subprocess.PIPE)

    def logged(name):
        entries = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        return [{field: x for field, x in entry.items() if field not in MEASURED} for entry in entries]

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
    optimizer = training.make_optimizer(training.AdamConfig(clip_norm=1.0), steps=400)
    shapes = jax.eval_shape(
        lambda: training.create(lambda key: {"w": jnp.zeros((40, 30))}, optimizer, jax.random.key(0), ema=True)
    )
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
    states = []
    for name in ("whole", "killed"):
        with training.Checkpoints(tmp_path / name / "c") as checkpoints:
            states.append(jax.tree.map(np.asarray, checkpoints.restore(400, target)[0]))
    chex.assert_trees_all_equal(*states)
    assert logged("killed") == logged("whole")
    assert [e["step"] for e in logged("killed") if "loss" in e] == list(range(1, 401))


def test_a_list_of_batches_is_refused():
    """The message has a function that repeats the list, which works."""
    batches = [batch(number) for number in range(3)]
    with pytest.raises(ValueError, match=r"batches must be a function from a step to an iterator .*; got list"):
        inspect.unwrap(training.fit)(STEP, new_state(), batches, config=settings(5))
    again = fit(new_state(), 5, batches=lambda start: itertools.islice(itertools.cycle(batches), start, None))
    want = fit(new_state(), 5, batches=lambda start: (batch(n % 3) for n in range(start, 5)))
    chex.assert_trees_all_equal(again.state, want.state)
