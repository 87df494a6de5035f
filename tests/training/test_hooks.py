"""Hooks are called in order."""

import pytest

from jaxformer import training
from tests.training.small import batch, fit, new_state


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


def test_a_hook_receives_a_failure():
    told = Told()
    with pytest.raises(training.NonFiniteError):
        fit(
            new_state(),
            4,
            batches=lambda start: iter([batch(0), batch(1, nan=True), batch(2)]),
            hooks=[told],
        )
    (*_, last) = told.events
    assert last[:2] == ("ended", 2)
    assert last[2].startswith("NonFiniteError: step 2")


class Failing(training.Hook):
    def ended(self, step, reason):
        raise ConnectionError("no tracker")


def test_a_failing_hook_does_not_hide_the_error(caplog):
    """The error of the training has the exit code that tells a launcher whether to try again."""
    told, bad = Told(), lambda start: iter([batch(0), batch(1, nan=True), batch(2)])
    with pytest.raises(training.NonFiniteError):
        fit(new_state(), 4, batches=bad, hooks=[Failing(), told])
    assert told.events[-1][:2] == ("ended", 2)
    assert "at the end of training: ConnectionError: no tracker" in caplog.text
    with pytest.raises(ConnectionError):
        fit(new_state(), 2, hooks=[Failing(), told])
    assert told.events[-1] == ("ended", 2, "done")


def test_a_full_disk_at_the_end_does_not_hide_the_error(tmp_path, monkeypatch):
    """Hooks receive the error, not that of the file with the times."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    told, timer = Told(), training.PhaseTimer(tmp_path / "time.json")
    monkeypatch.setattr(timer, "save", full)
    bad = lambda start: iter([batch(0, nan=True), batch(1)])
    with pytest.raises(training.NonFiniteError):
        fit(new_state(), 4, batches=bad, hooks=[told, timer])
    assert told.events[-1][:2] == ("ended", 1)


def test_the_base_class_does_nothing():
    assert fit(new_state(), 2, hooks=[training.Hook()]).reason == "done"
