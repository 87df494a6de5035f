"""Hooks are called in order."""

import os
import signal

import pytest

from jaxformer import signals, training
from tests.training.small import fit, new_state, with_bad


class Told(training.Hook):
    def __init__(self):
        self.events = []

    def step(self, step, metrics):
        assert {"loss", "tokens", "gradient_norm", "seconds", "tokens_per_second", "device_memory"} <= set(metrics)
        self.events.append(("step", step))

    def validated(self, step, metrics, better):
        self.events.append(("validated", step, metrics, better))

    def saved(self, step, directory):
        assert (directory / "state").is_dir()
        self.events.append(("saved", step))

    def ended(self, step, reason):
        self.events.append(("ended", step, reason))


def test_a_hook_receives_every_event_once(tmp_path):
    told = Told()
    with training.Checkpoints(tmp_path) as checkpoints:
        fit(
            new_state(),
            4,
            validate=lambda state: {"loss": 1.0},
            checkpoints=checkpoints,
            hooks=[told],
            config={"validate_every": 4, "checkpoint_every": 2},
        )
    steps = [event for event in told.events if event[0] == "step"]
    assert steps == [("step", number) for number in (1, 2, 3, 4)]
    assert [event for event in told.events if event[0] != "step"] == [
        ("validated", 4, {"loss": 1.0}, True),
        ("saved", 2),
        ("saved", 4),
        ("ended", 4, "done"),
    ]


class Every(training.Hook):
    """Every event in one word, with its step."""

    def __init__(self):
        self.events = []

    def started(self, start):
        self.events.append(f"started {start.step} {start.steps}")

    def begins(self, step, part):
        self.events.append(f"{part} {step}")

    def reported(self, step, metrics, means):
        assert means.loss > 0
        self.events.append(f"reported {step}")

    def step(self, step, metrics):
        self.events.append(f"step {step}")

    def went_back(self, step, problem):
        assert "batch 2" in problem
        self.events.append(f"went back {step}")


def test_the_order_of_events(tmp_path):
    """The metrics of a step come after the next one begins, and all before a save."""
    every = Every()
    config = {"checkpoint_every": 2, "log_every": 2, "nonfinite": "rollback"}
    with training.Checkpoints(tmp_path) as checkpoints:
        fit(new_state(), 4, batches=with_bad(2), checkpoints=checkpoints, hooks=[every], config=config)
    step = lambda number: [f"waiting for data {number}", f"stepping {number}"]
    assert every.events == [
        "started 0 4",
        *step(1),
        *[*step(2), "step 1", "reported 2", "step 2", "saving 2"],
        *[*step(3), *step(4), "step 3", "starting 3", "went back 2"],
        *[*step(3), *step(4), "step 3", "reported 4", "step 4", "saving 4"],
        "saving 4",
    ]


def test_a_hook_says_what_signals_say():
    said = []

    class Said(training.Hook):
        def say(self, text):
            said.append(text)

        def step(self, step, metrics):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    assert fit(new_state(), 9, hooks=[Said()]).reason == "terminated"
    assert said == [signals.MESSAGES[signal.SIGTERM]]


class Failing(training.Hook):
    def ended(self, step, reason):
        raise ConnectionError("no tracker")


def test_a_failing_hook_does_not_hide_the_error(caplog):
    """The error of the training has the exit code that tells a launcher whether to try again."""
    told, bad = Told(), with_bad(1)
    with pytest.raises(training.NonFiniteError):
        fit(new_state(), 4, batches=bad, hooks=[Failing(), told])
    assert told.events[-1][:2] == ("ended", 2)
    assert told.events[-1][2].startswith("NonFiniteError: step 2")
    assert "at the end of training: ConnectionError: no tracker" in caplog.text
    with pytest.raises(ConnectionError):
        fit(new_state(), 2, hooks=[Failing(), told])
    assert told.events[-1] == ("ended", 2, "done")


def test_a_full_disk_at_the_end_does_not_hide_the_error(tmp_path, monkeypatch):
    """Hooks receive the error, not that of the file with the times."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    told, timer = Told(), training.PhaseTimer(tmp_path / "time.json")
    monkeypatch.setattr(timer, "ended", full)
    with pytest.raises(training.NonFiniteError):
        fit(new_state(), 4, batches=with_bad(0), hooks=[told, timer])
    assert told.events[-1][:2] == ("ended", 1)
