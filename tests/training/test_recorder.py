"""The metrics of steps, recorded in logs and on the screen."""

import contextlib
import itertools
import time
import types
from typing import Any

import jax
import numpy as np
import pytest

from jaxformer import training
from jaxformer.training import phase_timer
from jaxformer.training.logging import JsonLog, read_log
from tests.training.small import OPTIMIZER, STEP, batch, fit, init, loss, new_state, settings, stream


@pytest.mark.parametrize(("every", "steps"), [(4, [4, 8, 10]), (0, [10])])
def test_reports_tokens_and_utilization(every, steps):
    seen = []

    class Reporter:
        def update(self, step, *, loss, tokens_per_second, utilization):
            seen.append((step, tokens_per_second > 0, None if utilization is None else utilization > 0))

        def tick(self, step, left): ...
        def say(self, text): ...
        def close(self): ...

    for flops in (1e6, 0.0):
        seen.clear()
        fit(
            new_state(),
            10,
            flops=lambda b, flops=flops: flops,
            outputs=training.Outputs(reporter=Reporter(), peak_flops=1e12),
            config={"log_every": every},
        )
        assert seen == [(step, True, True if flops else None) for step in steps]


def test_skipped_steps_are_counted_and_reported(tmp_path):
    said = []

    class Reporter:
        def update(self, step, **metrics): ...
        def tick(self, step, left): ...
        def say(self, text):
            said.append(text)

        def close(self): ...

    step = training.make_step(loss, OPTIMIZER, nonfinite="skip")
    bad = lambda start: (batch(number, nan=number in (2, 4)) for number in itertools.count(start))
    log = JsonLog(tmp_path / "log.jsonl")
    out = training.Outputs(log=log, reporter=Reporter())
    result = training.fit(step, new_state(), bad, config=settings(6), outputs=out)
    log.close()
    assert result.skipped == 2
    skipped = [text for text in said if "skipped" in text]
    assert skipped == ["step 3: not finite, skipped (1 so far)", "step 5: not finite, skipped (2 so far)"]
    assert [entry["loss"] is None for entry in read_log(tmp_path / "log.jsonl")] == [s in (3, 5) for s in range(1, 7)]


def test_a_step_that_does_not_report_whether_its_loss_is_finite():
    """A custom step may return only loss and count: training continued to its end."""

    def step(state, batch):
        state, metrics = STEP(state, batch)
        return state, {name: metrics[name] for name in ("loss_sum", "count")}

    bad = lambda start: (batch(number, nan=number == 1) for number in itertools.count(start))
    with pytest.raises(training.NonFiniteError, match="step 2"):
        training.fit(step, new_state(), bad, config=settings(4))


def test_metrics_are_read_one_step_late():
    """Metrics of step n are read after step n + 1 is dispatched: the device never waits for the host."""
    events = []

    class Log:
        def write(self, step, **values):
            events.append(("read", step))

        def flush(self): ...

    def watched(state, one):
        events.append(("dispatched", int(one["number"])))
        return STEP(state, one["batch"])

    numbered = lambda start: ({"number": n + 1, "batch": b} for n, b in enumerate(stream(start), start))
    training.fit(watched, new_state(), numbered, config=settings(3), outputs=training.Outputs(log=Log()))
    assert events == [("dispatched", 1), ("dispatched", 2), ("read", 1), ("dispatched", 3), ("read", 2), ("read", 3)]


def test_the_log_has_the_measurements_of_a_step(tmp_path):
    """The learning rate, which skipped updates do not advance, the times of step and batch, and memory."""
    settings_of = training.AdamConfig(learning_rate=0.01, warmup_steps=10)
    optimizer = training.make_optimizer(settings_of, steps=100)
    rate = training.make_schedule(settings_of, steps=100)
    step = training.make_step(loss, optimizer, nonfinite="skip", learning_rate=rate)
    bad = lambda start: (batch(number, nan=number == 1) for number in itertools.count(start))
    with contextlib.closing(JsonLog(tmp_path / "log.jsonl")) as log:
        state = training.create(init, optimizer, jax.random.key(0))
        outputs = training.Outputs(log=log, label_smoothing=0.1)
        training.fit(step, state, bad, config=settings(4), outputs=outputs)
    entries = read_log(tmp_path / "log.jsonl")
    assert {entry["label_smoothing"] for entry in entries} == {0.1}
    assert [entry["learning_rate"] for entry in entries] == [pytest.approx(0.001 * n) for n in (1, 2, 2, 3)]
    for entry in entries:
        assert min(entry["seconds"], entry["data_wait"]) > 0
        assert entry["tokens_per_second"] == pytest.approx(entry["tokens"] / entry["seconds"])
        assert entry["device_memory"] > 2**20


def test_the_time_of_a_step_is_its_own(tmp_path, monkeypatch):
    """Metrics are read one step late, but a step that is done when its call returns ends there."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(phase_timer, "time", clock)

    def timed(state, one):
        clock.now += one["number"]
        return jax.block_until_ready(STEP(state, one["batch"]))

    numbered = lambda start: ({"number": n + 1, "batch": b} for n, b in enumerate(stream(start), start))
    with contextlib.closing(JsonLog(tmp_path / "log.jsonl")) as log:
        training.fit(timed, new_state(), numbered, config=settings(4), outputs=training.Outputs(log=log))
    assert [entry["seconds"] for entry in read_log(tmp_path / "log.jsonl")] == [1.0, 2.0, 3.0, 4.0]


def test_steps_that_end_unseen_share_the_time(tmp_path, monkeypatch):
    """The process was away, in the call of the second step, while the device finished both."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(phase_timer, "time", clock)

    class Later(np.ndarray):
        def is_ready(self):
            return clock.now >= 4.0

    def away(state, one):
        state, metrics = STEP(state, one["batch"])
        clock.now += 4.0 * (one["number"] == 2)
        return state, {name: np.asarray(value).view(Later) for name, value in metrics.items()}

    numbered = lambda start: ({"number": n + 1, "batch": b} for n, b in enumerate(stream(start), start))
    with contextlib.closing(JsonLog(tmp_path / "log.jsonl")) as log:
        training.fit(away, new_state(), numbered, config=settings(2), outputs=training.Outputs(log=log))
    assert [entry["seconds"] for entry in read_log(tmp_path / "log.jsonl")] == [2.0, 2.0]


def test_the_time_left_is_shown_from_the_first_step_on():
    ticks, said = [], []

    class Reporter:
        def update(self, step, **metrics): ...
        def tick(self, step, left):
            ticks.append((step, left > 0))

        def say(self, text):
            said.append(text)

        def close(self): ...

    fit(new_state(), 6, outputs=training.Outputs(reporter=Reporter()), config={"log_every": 100})
    assert ticks == [(1, True), (2, True), (3, True), (4, True), (5, True), (6, False)]
    (foretold,) = said
    assert foretold.startswith("3 more steps take about ")


def test_a_training_too_short_for_a_prediction_has_none():
    """After the last of three steps, "0 more steps take about 0.0 s" was predicted."""
    said = []
    silent = lambda *_, **__: None
    reporter: Any = types.SimpleNamespace(update=silent, tick=silent, say=said.append)
    fit(new_state(), 3, outputs=training.Outputs(reporter=reporter))
    assert said == []


@pytest.mark.parametrize(("scale", "nan"), [(0.001, False), (1.0, True)])
def test_the_reported_loss_is_a_mean_for_any_weights(tmp_path, scale, nan):
    """Divided by at least one token, it was too small for small weights, and 0 if all steps were skipped."""
    reported = []
    silent = lambda *_, **__: None
    update = lambda step, loss, **_: reported.append(loss)
    reporter: Any = types.SimpleNamespace(update=update, tick=silent, say=silent)
    light = lambda start: (b | {"weight": b["weight"] * np.float32(scale)} for b in iter(lambda: batch(1, nan=nan), 0))
    step = training.make_step(loss, OPTIMIZER, nonfinite="skip")
    with contextlib.closing(JsonLog(tmp_path / "log.jsonl")) as log:
        outputs = training.Outputs(reporter=reporter, log=log)
        training.fit(step, new_state(), light, config=settings(1), outputs=outputs)
    (logged,) = (entry["loss"] for entry in read_log(tmp_path / "log.jsonl"))
    assert reported == [pytest.approx(np.nan if nan else logged, nan_ok=True)]


@pytest.mark.parametrize("name", ["loss", "seconds", "step"])
def test_a_metric_with_the_name_of_a_logged_value_is_refused(name):
    """The log raised a TypeError about its own arguments, and hooks got the metric in place of the value."""
    own: Any = lambda params, b, key: (*loss(params, b, key)[:2], {name: np.float32(7)})
    with pytest.raises(ValueError, match=f"training itself logs {name}; give the loss's metric another name"):
        training.fit(training.make_step(own, OPTIMIZER), new_state(), stream, config=settings(1))


def test_a_full_disk_leaves_no_bar_on_the_screen(tmp_path):
    """A bar hides the cursor of the terminal."""
    closed = []
    log = JsonLog(tmp_path / "log.jsonl")
    log.close()
    log.close = lambda: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    reporter: Any = types.SimpleNamespace(close=lambda: closed.append("reporter"))
    board: Any = types.SimpleNamespace(close=lambda: closed.append("board"))
    with pytest.raises(OSError, match="No space left"):
        training.Outputs(log=log, board=board, reporter=reporter).close()
    assert closed == ["board", "reporter"]
    training.Outputs().close()
