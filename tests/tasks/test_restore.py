"""Parameters of a run: which checkpoints are read, and the errors of a run that has no checkpoint."""

import dataclasses
import os
import pathlib
import shutil
import types

import chex
import jax
import pytest

import jaxformer
from jaxformer import training
from jaxformer.errors import ConfigError
from jaxformer.multihost import cluster
from jaxformer.tasks import restore
from tests.training.small import abstract, metadata, new_state


def test_the_command_that_makes_an_average_can_be_pasted():
    assert "run `jaxformer average 'my run'` first" in str(restore.no_average(pathlib.Path("my run")))


def test_an_average_reads_neither_moments_nor_moving_averages(tmp_path):
    """They are three quarters of a checkpoint, and damage to them does not matter."""
    state = new_state(ema=True)
    state = dataclasses.replace(state, ema_params=jax.tree.map(lambda x: x + 1, state.params))
    with training.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
    with metadata(tmp_path, 1) as about:
        for path in about["checksums"]:
            about["checksums"][path][0] ^= path.startswith((".optimizer", ".ema_params"))
    with training.Checkpoints(tmp_path) as checkpoints:
        chex.assert_trees_all_equal(checkpoints.average(restore.parameters_alone(abstract(state)), [1]), state.params)


def removed_before_reading(monkeypatch, folder, number=1):
    """Lets a training save the next step, and so remove the only one, just before each of the first reads."""
    read, left = training.Checkpoints._read, [number]

    def late(self, step, *arguments):
        if left[0]:
            left[0] -= 1
            with training.Checkpoints(folder, keep_last=1) as other:
                other.save(step + 1, scaled(step + 1), {"averaged": [step + 1]}, score=-step)
            assert not (folder / str(step)).exists()
        return read(self, step, *arguments)

    monkeypatch.setattr(training.Checkpoints, "_read", late)


def scaled(step):
    state = new_state()
    return dataclasses.replace(state, params=jax.tree.map(lambda x: x * step, state.params))


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_a_step_that_a_training_removes_is_not_damaged(tmp_path, monkeypatch, caplog, checkpoint):
    folder, setup = tmp_path / "checkpoints", types.SimpleNamespace(abstract_state=lambda: abstract(new_state()))
    with training.Checkpoints(folder, keep_last=1) as checkpoints:
        checkpoints.save(1, scaled(1), {}, score=0.0)
    removed_before_reading(monkeypatch, folder, 2)
    params, steps = restore.restore_params(tmp_path, setup, checkpoint)
    assert steps == (3,)
    chex.assert_trees_all_equal(params, scaled(3).params)
    assert caplog.text == ""


def test_steps_that_a_training_removes_are_not_averaged(tmp_path, monkeypatch):
    with training.Checkpoints(tmp_path / "checkpoints", keep_last=1) as checkpoints:
        checkpoints.save(1, scaled(1), {})
    removed_before_reading(monkeypatch, tmp_path / "checkpoints")
    target = restore.parameters_alone(abstract(new_state()))
    steps, params = restore.read_steps(
        tmp_path, None, training.Checkpoints.steps, lambda saved, steps: saved.average(target, steps)
    )
    assert steps == [2]
    chex.assert_trees_all_equal(params, scaled(2).params)


@pytest.mark.parametrize("checkpoint", ["last", "best", "2"])
def test_all_processes_read_the_same_step(tmp_path, monkeypatch, checkpoint):
    """A training saves a step just after this process has listed the steps, and just before process 0 lists them."""
    looks, setup = [], types.SimpleNamespace(abstract_state=lambda: abstract(new_state()))
    with training.Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, scaled(1), {}, score=2.0)

    def unequal(text):
        if not looks:
            with training.Checkpoints(tmp_path / "checkpoints") as other:
                other.save(2, scaled(2), {}, score=1.0)
        looks.append(text)
        return ["process 1"] * (text != "[2]")

    monkeypatch.setattr(cluster, "unequal_processes", unequal)
    params, steps = restore.restore_params(tmp_path, setup, checkpoint)
    assert (steps, len(looks)) == ((2,), 2)
    chex.assert_trees_all_equal(params, scaled(2).params)


def test_a_damaged_step_is_still_named(tmp_path):
    with training.Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, new_state(), {})
    shutil.rmtree(tmp_path / "checkpoints" / "1" / "state")
    setup = types.SimpleNamespace(abstract_state=lambda: abstract(new_state()))
    with pytest.raises(training.CheckpointError, match=r"step 1 in .* cannot be read"):
        restore.restore_params(tmp_path, setup, "last")


def test_a_checkpoint_is_a_number_of_digits(tmp_path):
    with training.Checkpoints(tmp_path) as saved:
        saved.save(2, {"x": jax.numpy.ones(2)}, {})
        with pytest.raises(ConfigError, match="no checkpoint '²'"):
            restore.choose_step(saved, "²")


def test_an_average_of_no_checkpoints_is_refused(tmp_path):
    """The last 0 of a list are the whole list."""
    with pytest.raises(ConfigError, match="last must be at least 1, got 0"):
        jaxformer.average(tmp_path, last=0)


@pytest.mark.parametrize(
    ("checkpoint", "error", "message"),
    [
        ("average", ConfigError, "has no averaged parameters; run `jaxformer average"),
        ("last", training.CheckpointError, r"no checkpoint in .*checkpoints yet"),
    ],
)
def test_reading_creates_no_folder(tmp_path, checkpoint, error, message):
    """In a read-only run it would be an error about writing."""
    with pytest.raises(error, match=message):
        restore.restore_params(tmp_path, types.SimpleNamespace(abstract_state=lambda: None), checkpoint)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda run: shutil.rmtree(run), "config.json is gone since"),
        (lambda run: shutil.rmtree(run / "checkpoints" / "4"), "4 is gone since"),
        (lambda run: (run / "checkpoints" / "4" / "params").rename(run / "old"), "4 has changed since"),
        (lambda run: (run / "config.json").write_text("{ }"), "config.json has changed since .*run was loaded; start"),
    ],
)
def test_files_that_are_no_longer_those_that_were_loaded(tmp_path, change, problem):
    """Further checkpoints, of a training that goes on, change nothing."""
    run = tmp_path / "run"
    (run / "checkpoints" / "4" / "params").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    os.utime(run / "config.json", (1, 1))
    check = restore.watch(run, "best", (4,))
    (run / "checkpoints" / "6").mkdir()
    check()
    change(run)
    with pytest.raises(ConfigError, match=problem):
        check()
