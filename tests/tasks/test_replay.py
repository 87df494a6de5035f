"""Replays: equality of losses, and the batches of a run that went back."""

import math

import pytest
from rich.console import Console

from jaxformer import training
from jaxformer.errors import ConfigError
from jaxformer.tasks import rundir, runner
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.replay import Replayed, _left_out, replay
from tests.tasks.language_model.small import tiny


def test_a_loss_that_is_not_finite_is_null_in_the_log():
    assert Replayed(3, None, math.nan).same
    assert Replayed(3, 0.5, 0.5).same
    assert not Replayed(3, None, 0.5).same
    assert not Replayed(3, 0.5, math.nan).same


@pytest.mark.parametrize(
    ("logged", "step", "message"),
    [
        ([], 1, r"has no steps in log\.jsonl to replay"),  # such as one that was copied for its parameters only
        ([7], 1, r"has no steps in log\.jsonl to replay, only later ones"),
        ([1, 2, 4], 3, r"in \[1, 2\], the steps that are logged from the first on, got 3"),
    ],
)
def test_steps_that_are_not_in_the_log(tmp_path, logged, step, message):
    rundir.claim(tmp_path, "language_model", LanguageModelingConfig(), ())
    (tmp_path / "log.jsonl").write_text("".join(f'{{"step": {number}, "loss": 2.0}}\n' for number in logged))
    with pytest.raises(ConfigError, match=message):
        next(replay(tmp_path, steps=step))


def test_a_damaged_last_checkpoint_does_not_stop_a_replay(tmp_path):
    for step, text in ((2, '{"progress": {"left_out": [1]}}'), (4, "{")):
        about = tmp_path / "checkpoints" / str(step) / "about"
        about.mkdir(parents=True)
        (about / "metadata").write_text(text)
    assert _left_out(tmp_path) == [1]


@pytest.mark.full
def test_batches_that_a_run_left_out_are_not_replayed(tmp_path, monkeypatch):
    left_out = training.Progress(left_out=[1])
    monkeypatch.setattr(training, "Progress", lambda: left_out)
    runner.train(tiny(tmp_path), tmp_path / "run", console=Console(quiet=True))
    steps = list(replay(tmp_path / "run", steps=3))
    assert [step.step for step in steps] == [1, 2, 3]
    assert all(step.same for step in steps)
