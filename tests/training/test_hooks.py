"""Hooks are told what happens, in order."""

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


def test_a_hook_is_told_everything_once(tmp_path):
    told = Told()
    with training.Checkpoints(tmp_path) as checkpoints:
        fit(
            new_state(),
            4,
            validate=lambda state: {"loss": 1.0},
            outputs=training.Outputs(checkpoints, hooks=[told]),
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


def test_a_hook_is_told_of_a_failure():
    told = Told()
    with pytest.raises(training.NonFiniteError):
        fit(
            new_state(),
            4,
            batches=lambda start: iter([batch(0), batch(1, nan=True), batch(2)]),
            outputs=training.Outputs(hooks=[told]),
        )
    (*_, last) = told.events
    assert last[:2] == ("ended", 2)
    assert last[2].startswith("NonFiniteError: step 2")


def test_the_base_class_may_be_used_as_it_is():
    assert fit(new_state(), 2, outputs=training.Outputs(hooks=[training.Hook()])).reason == "done"
