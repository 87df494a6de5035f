"""Traces of steps."""

import gzip
import itertools
import json
import re

import jax
import pytest

from jaxformer import training
from jaxformer.errors import ConfigError
from jaxformer.multihost import processes
from jaxformer.training.profile import profiled_steps
from tests.training.small import OPTIMIZER, batch, fit, loss, new_state, settings, start, stream


def test_a_trace_has_the_requested_steps(tmp_path):
    """Perfetto and XProf open these files, which have the model's blocks; a trace also ends with the training."""

    def named(params, batch, key):
        with jax.named_scope("a_block"):
            total, *rest = loss(params, batch, key)
            return 3.0 * total, *rest  # a program of its own: the compilation cache would give one without the name

    step = training.make_step(named, OPTIMIZER)
    training.fit(step, new_state(), stream, config=settings(6), hooks=[training.Profile(tmp_path, "3:4")])
    (file,) = tmp_path.rglob("perfetto_trace.json.gz")
    (xplane,) = tmp_path.rglob("*.xplane.pb")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    steps = {event["args"]["step_num"] for event in events if "step_num" in event.get("args", {})}
    assert steps == {"3", "4"}
    assert re.search(rb"jit\(step\)/[^ ]*a_block", xplane.read_bytes())


@pytest.mark.parametrize("text", ["0", "4:3", "a", "1:", "-3", "", "2:9", "21:22", "99:101"])
def test_steps_that_cannot_be_traced(text):
    with pytest.raises(ConfigError, match="the steps to profile must"):
        profiled_steps(text, start=5, steps=20)


@pytest.mark.parametrize("text", ["5", "100:104"])
def test_a_resumed_run_without_these_steps_continues_without_a_trace(tmp_path, text, caplog):
    profile = training.Profile(tmp_path, text)
    profile.started(start(step=195, steps=200))
    for number in range(196, 201):
        profile.begins(number, "waiting for data")
    assert caplog.messages[0].startswith("no trace is written: the steps to profile must be")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="the steps to profile must be"):
        training.Profile(tmp_path, "201:202").started(start(steps=200))


@pytest.mark.parametrize("bad", [2, 4])
def test_a_process_that_writes_no_trace_reads_its_metrics_at_the_same_step(tmp_path, monkeypatch, bad):
    """Otherwise it would begin a step while the first process goes back from a NaN."""
    monkeypatch.setattr(processes, "is_first", lambda: False)
    dispatched = []

    def numbers(start):
        for number in itertools.count(start + 1):
            dispatched.append(number)
            yield batch(number, nan=number == bad)

    with pytest.raises(training.NonFiniteError, match=f"step {bad}"):
        fit(new_state(), 6, batches=numbers, hooks=[training.Profile(tmp_path, "3:4")])
    assert dispatched == list(range(1, bad + 1))
    assert not list(tmp_path.iterdir())


def test_a_trace_continues_while_training_goes_back(tmp_path, monkeypatch):
    """A second trace cannot begin, so training would end."""
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda *_, **__: calls.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    profile = training.Profile(tmp_path, "3:4")
    profile.started(start(steps=9))
    for number in (1, 2, 3, 4, 2, 3, 4, 5, 6):
        profile.begins(number, "waiting for data")
    assert calls == ["start", "stop"]
