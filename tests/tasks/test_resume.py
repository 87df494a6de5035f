"""Runs that continue with other settings."""

import json
import re
import shutil

import chex
import pytest
from rich.console import Console

import jaxformer
from jaxformer import training
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry
from jaxformer.training.logging import read_log
from tests.contracts.task import quiet
from tests.tasks.language_model import small


def tiny(folder):
    """Without validation, whose program no test here needs."""
    folder.mkdir(exist_ok=True)
    return changed(small.tiny(folder), {"train": {"validate_every": 0}})


def losses(run):
    return [entry["loss"] for entry in read_log(run / "log.jsonl") if "loss" in entry]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs: one of 6 steps, and one of 8 that cools down over the last 2."""
    folder = tmp_path_factory.mktemp("resume")
    short = tiny(folder / "cache")
    jaxformer.train(short, folder / "short", console=quiet())
    jaxformer.train(cooled(short), folder / "straight", console=quiet())
    return folder


def cooled(config):
    return changed(config, {"train": {"steps": 8}, "optimizer": {"cooldown": 0.25}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"learning_rate": 2e-2}}, r"learning rate of step 1 would have been 0\.01, not 0\.005"),
        ({"optimizer": {"cooldown": 0.5}}, r"short has done 6 steps, but .* of step 5 would"),
        ({"train": {"steps": 5}}, r"has done 6 steps, more than the 5 of train\.steps"),
        ({"train": {"ema_decay": 0.5}}, r"another configuration: train\.ema_decay was 0\.0, now 0\.5"),
        ({"model": {"dropout": 0.2}}, r"another configuration: model\.dropout"),
    ],
)
def test_settings_that_would_change_completed_steps_are_refused(folder, changes, message):
    config = tiny(folder / "cache")
    before = (folder / "short" / "config.json").read_text()
    with pytest.raises(ConfigError, match=message):
        jaxformer.train(changed(config, changes), folder / "short", console=quiet())
    assert (folder / "short" / "config.json").read_text() == before


@pytest.mark.full
def test_a_resumed_cooldown_equals_a_planned_one(folder, capsys):
    config = changed(cooled(tiny(folder / "cache")), {"train": {"nonfinite": "skip", "log_every": 1}})
    result = jaxformer.train(config, folder / "short", console=Console(width=200))
    said = capsys.readouterr().out
    for line in (
        "train.steps is now 8, was 6",
        "optimizer.cooldown is now 0.25, was 0.0",
        "nonfinite is now skip, was",
    ):
        assert line in said
    assert losses(folder / "short") == losses(folder / "straight")
    straight = jaxformer.load(folder / "straight", checkpoint="last")
    chex.assert_trees_all_equal(result.state.params, straight.params)
    assert registry.read_config(folder / "short") == config
    jaxformer.train(config, folder / "short", console=Console(width=200))
    assert "is now" not in capsys.readouterr().out


def test_a_moved_run_saves_the_settings_of_its_new_place(folder, capsys):
    """As when the data have moved: later commands would look in the old place."""
    config = changed(
        registry.read_config(folder / "straight"), {"data": {"directory": str(folder)}, "train": {"minutes": 9.0}}
    )
    jaxformer.train(config, folder / "straight", console=Console(width=200))
    assert "is now" not in capsys.readouterr().out
    assert registry.read_config(folder / "straight") == config


def test_a_checkpoint_of_another_run_is_not_used(folder, tmp_path, capsys):
    """It has the same shapes, so nothing else tells it apart."""
    config, run = cooled(tiny(folder / "cache")), tmp_path / "run"
    shutil.copytree(folder / "short", run)
    shutil.copytree(folder / "straight" / "checkpoints" / "8", run / "checkpoints" / "8")
    before = (run / "config.json").read_bytes()
    message = "step 8 in .* belongs to another run, by its fingerprint; move its folder away"
    with pytest.raises(training.OtherModelError, match=message):
        jaxformer.train(config, run, console=quiet())
    assert (run / "config.json").read_bytes() == before
    assert (run / "checkpoints" / "8").is_dir()
    assert main(["average", str(run), "--last", "2"]) == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])
    with pytest.raises(training.OtherModelError, match=message):
        jaxformer.load(run, checkpoint="last")
    shutil.rmtree(run / "checkpoints" / "8")
    assert jaxformer.average(run, last=1) == [6]
    shutil.rmtree(run / "average")
    assert int(jaxformer.train(config, run, console=quiet()).state.step) == 8  # its fingerprint is that of its start


@pytest.mark.parametrize("name", ["log.jsonl", "time.json"])
def test_a_log_that_is_a_folder_is_found_before_settings_are_saved(folder, tmp_path, name):
    config, run = cooled(tiny(folder / "cache")), tmp_path / "run"
    shutil.copytree(folder / "short", run)
    (run / name).unlink()
    (run / name).mkdir()
    before = (run / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=f"{name} must be a file"):
        jaxformer.train(config, run, console=quiet())
    assert (run / "config.json").read_bytes() == before


def test_an_average_of_another_run_is_not_used(folder, tmp_path):
    shutil.copytree(folder / "short", tmp_path / "other")
    shutil.copytree(folder / "straight", tmp_path / "run")
    jaxformer.average(tmp_path / "other", last=1)
    shutil.copytree(tmp_path / "other" / "average", tmp_path / "run" / "average")
    with pytest.raises(training.CheckpointError, match="another run"):
        jaxformer.load(tmp_path / "run", checkpoint="average")


def test_a_run_of_an_earlier_version_has_no_fingerprint(folder, tmp_path):
    """It resumes, and its checkpoints are read without a comparison."""
    config, run = cooled(tiny(folder / "cache")), tmp_path / "run"
    shutil.copytree(folder / "straight", run)
    facts = json.loads((run / "provenance.json").read_text())
    assert facts.pop("run")
    (run / "provenance.json").write_text(json.dumps(facts))
    shutil.rmtree(run / "checkpoints" / "8")
    assert int(jaxformer.train(config, run, console=quiet()).state.step) == 8
    assert json.loads((run / "provenance.json").read_text())["run"] == ""
    assert jaxformer.load(run, checkpoint="last")
