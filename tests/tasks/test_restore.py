"""Parameters of a run: the errors if it has no parameters. tests/tasks/test_runner.py reads them."""

import dataclasses
import json
import pathlib

import jax

from jaxformer import training
from jaxformer.tasks import restore
from tests.training.small import abstract, equal, new_state


def test_the_command_that_makes_an_average_can_be_pasted():
    assert "run `jaxformer average 'my run'` first" in str(restore.no_average(pathlib.Path("my run")))


def test_an_average_reads_neither_moments_nor_moving_averages(tmp_path):
    """They are three quarters of a checkpoint, and damage to them does not matter."""
    state = new_state(ema=True)
    state = dataclasses.replace(state, ema_params=jax.tree.map(lambda x: x + 1, state.params))
    with training.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
    about = tmp_path / "1" / "about" / "metadata"
    text = json.loads(about.read_text())
    del text["digest"]
    for path in text["checksums"]:
        text["checksums"][path][0] ^= path.startswith((".optimizer", ".ema_params"))
    about.write_text(json.dumps(text))
    with training.Checkpoints(tmp_path) as checkpoints:
        assert equal(checkpoints.average(restore.parameters_alone(abstract(state)), [1]), state.params)
