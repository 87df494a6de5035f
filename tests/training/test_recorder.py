"""The metrics of steps, recorded in logs and on the screen."""

import io
import time
import types
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from jaxformer import training
from jaxformer.training import phase_timer
from jaxformer.training.logging import JsonLog, TensorBoard, read_log
from jaxformer.training.progress import Display
from tests.training.small import OPTIMIZER, STEP, batch, fit, init, loss, new_state, settings, stream, with_bad


@pytest.fixture
def clock(monkeypatch):
    """The time of trainings, which a test sets."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(phase_timer, "time", clock)
    return clock


def numbered(start):
    return ({"number": n + 1, "batch": b} for n, b in enumerate(stream(start), start))


@pytest.mark.parametrize(("every", "steps"), [(4, [4, 8, 10]), (0, [10])])
def test_reports_tokens_and_utilization(every, steps):
    seen = []

    class Seen(training.Hook):
        def reported(self, step, metrics, means):
            seen.append((step, means.tokens_per_second > 0, means.flops_per_second > 0))

    for flops in (1e6, 0.0):
        seen.clear()
        fit(new_state(), 10, flops=lambda b, flops=flops: flops, hooks=[Seen()], config={"log_every": every})
        assert seen == [(step, True, flops > 0) for step in steps]


def test_skipped_steps_are_counted_and_reported(tmp_path):
    out = io.StringIO()
    step = training.make_step(loss, OPTIMIZER, nonfinite="skip")
    hooks = [JsonLog(tmp_path / "log.jsonl"), Display(Console(file=out))]
    result = training.fit(step, new_state(), with_bad(2, 4), config=settings(6), hooks=hooks)
    assert result.skipped == 2
    skipped = [text for text in out.getvalue().splitlines() if "skipped" in text]
    assert skipped == ["step 3: not finite, skipped (1 so far)", "step 5: not finite, skipped (2 so far)"]
    assert [entry["loss"] is None for entry in read_log(tmp_path / "log.jsonl")] == [s in (3, 5) for s in range(1, 7)]


def test_a_step_that_does_not_report_whether_its_loss_is_finite():
    """A custom step may return only loss and count: training continued to its end."""

    def step(state, batch):
        state, metrics = STEP(state, batch)
        return state, {name: metrics[name] for name in ("loss_sum", "count")}

    with pytest.raises(training.NonFiniteError, match="step 2"):
        training.fit(step, new_state(), with_bad(1), config=settings(4))


def test_metrics_are_read_one_step_late():
    """Metrics of step n are read after step n + 1 is dispatched: the device never waits for the host."""
    events = []

    class Log(training.Hook):
        def step(self, step, metrics):
            events.append(("read", step))

    def watched(state, one):
        events.append(("dispatched", int(one["number"])))
        return STEP(state, one["batch"])

    training.fit(watched, new_state(), numbered, config=settings(3), hooks=[Log()])
    assert events == [("dispatched", 1), ("dispatched", 2), ("read", 1), ("dispatched", 3), ("read", 2), ("read", 3)]


def test_the_log_has_the_measurements_of_a_step(tmp_path):
    """The learning rate, which skipped updates do not advance, the times of step and batch, and memory."""
    settings_of = training.AdamConfig(learning_rate=0.01, warmup_steps=10)
    optimizer = training.make_optimizer(settings_of, steps=100)
    rate = training.make_schedule(settings_of, steps=100)
    step = training.make_step(loss, optimizer, nonfinite="skip", learning_rate=rate)
    state = training.create(init, optimizer, jax.random.key(0))
    training.fit(
        step, state, with_bad(1), config=settings(4), hooks=[JsonLog(tmp_path / "log.jsonl", label_smoothing=0.1)]
    )
    entries = read_log(tmp_path / "log.jsonl")
    assert {entry["label_smoothing"] for entry in entries} == {0.1}
    assert [entry["learning_rate"] for entry in entries] == [pytest.approx(0.001 * n) for n in (1, 2, 2, 3)]
    for entry in entries:
        assert min(entry["seconds"], entry["data_wait"]) > 0
        assert entry["tokens_per_second"] == pytest.approx(entry["tokens"] / entry["seconds"])
        assert entry["device_memory"] > 2**20


def test_the_time_of_a_step_is_its_own(tmp_path, clock):
    """Metrics are read one step late, but a step that is done when its call returns ends there."""

    def timed(state, one):
        clock.now += one["number"]
        return jax.block_until_ready(STEP(state, one["batch"]))

    training.fit(timed, new_state(), numbered, config=settings(4), hooks=[JsonLog(tmp_path / "log.jsonl")])
    assert [entry["seconds"] for entry in read_log(tmp_path / "log.jsonl")] == [1.0, 2.0, 3.0, 4.0]


def test_steps_that_end_unseen_share_the_time(tmp_path, clock):
    """The process was away, in the call of the second step, while the device finished both."""

    class Later(np.ndarray):
        def is_ready(self):
            return clock.now >= 4.0

    def away(state, one):
        state, metrics = STEP(state, one["batch"])
        clock.now += 4.0 * (one["number"] == 2)
        return state, {name: np.asarray(value).view(Later) for name, value in metrics.items()}

    training.fit(away, new_state(), numbered, config=settings(2), hooks=[JsonLog(tmp_path / "log.jsonl")])
    assert [entry["seconds"] for entry in read_log(tmp_path / "log.jsonl")] == [2.0, 2.0]


@pytest.mark.parametrize(("scale", "nan"), [(0.001, False), (1.0, True)])
def test_the_reported_loss_is_a_mean_for_any_weights(tmp_path, scale, nan):
    """Divided by at least one token, it was too small for small weights, and 0 if all steps were skipped."""
    reported = []

    class Seen(training.Hook):
        def reported(self, step, metrics, means):
            reported.append(means.loss)

    light = lambda start: (b | {"weight": b["weight"] * np.float32(scale)} for b in iter(lambda: batch(1, nan=nan), 0))
    step = training.make_step(loss, OPTIMIZER, nonfinite="skip")
    training.fit(step, new_state(), light, config=settings(1), hooks=[JsonLog(tmp_path / "log.jsonl"), Seen()])
    (logged,) = (entry["loss"] for entry in read_log(tmp_path / "log.jsonl"))
    assert reported == [pytest.approx(np.nan if nan else logged, nan_ok=True)]


@pytest.mark.parametrize("name", ["loss", "seconds", "step"])
def test_a_metric_with_the_name_of_a_logged_value_is_refused(name):
    """The log raised a TypeError about its own arguments, and hooks got the metric in place of the value."""
    own: Any = lambda params, b, key: (*loss(params, b, key)[:2], {name: np.float32(7)})
    with pytest.raises(ValueError, match=f"training itself logs {name}; give the loss's metric another name"):
        training.fit(training.make_step(own, OPTIMIZER), new_state(), stream, config=settings(1))


def test_a_metric_that_is_an_array_is_refused():
    own: Any = lambda params, b, key: (*loss(params, b, key)[:2], {"parts": np.float32([7, 8])})
    with pytest.raises(ValueError, match=r"training logs metrics that are scalars, got parts \[2\]"):
        training.fit(training.make_step(own, OPTIMIZER), new_state(), stream, config=settings(1))


def test_a_full_disk_leaves_no_bar_on_the_screen(tmp_path):
    """A bar hides the cursor of the terminal."""
    screen = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    with pytest.raises(OSError, match="No space left"):
        fit(new_state(), 3, hooks=[Full(tmp_path / "log.jsonl"), Display(screen)])
    assert screen.file.getvalue().endswith("\x1b[?25h")


class Full(JsonLog):
    def ended(self, step, reason):
        super().ended(step, reason)
        raise OSError(28, "No space left on device")


def test_hooks_end_even_if_one_cannot_start(tmp_path, caplog):
    """A tracker would wait for more."""
    ended = []

    class Late(training.Hook):
        def ended(self, step, reason):
            ended.append((step, reason))

    (tmp_path / "file").touch()
    hooks = [TensorBoard(tmp_path), JsonLog(tmp_path / "file" / "log.jsonl"), Display(Console(quiet=True)), Late()]
    with pytest.raises(OSError, match="file"):
        fit(new_state(), 3, hooks=hooks)
    ((step, reason),) = ended
    assert step == 0
    assert reason.startswith(("FileExistsError", "NotADirectoryError"))
    assert not caplog.records


def test_the_time_of_steps_that_are_undone_is_no_other_steps(tmp_path, clock):
    """The first step after going back had the time of those before, too."""

    def timed(state, one):
        clock.now += 1.0
        return jax.block_until_ready(STEP(state, one))

    config = settings(4, checkpoint_every=2, nonfinite="rollback")
    with training.Checkpoints(tmp_path) as checkpoints:
        log = JsonLog(tmp_path / "log.jsonl")
        training.fit(timed, new_state(), with_bad(2), config=config, checkpoints=checkpoints, hooks=[log])
    assert [entry["seconds"] for entry in read_log(tmp_path / "log.jsonl")] == [1.0] * 4
