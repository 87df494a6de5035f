"""The runner: its refusals, the files that it leaves, and runs that continue with other settings."""

import dataclasses
import importlib.machinery
import json
import pathlib
import re
import runpy
import shutil
import sys
import types
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import jaxformer
from jaxformer import demo, lazy, sharding, training
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import registry, restore, rundir, runner
from jaxformer.tasks.runner import Validation
from jaxformer.tokenizers.loading import load_tokenizer
from jaxformer.training.logging import read_log
from tests.contracts.task import quiet
from tests.tasks.language_model import small as text
from tests.tasks.small import small


def test_a_refused_run_leaves_no_files(tmp_path):
    """Also if only the data show that the settings are wrong."""
    with pytest.raises(DataError, match=r"model\.max_positions is 8"):
        jaxformer.train(small(cache=str(tmp_path / "cache")), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def test_a_refused_run_keeps_an_existing_config(tmp_path):
    """As in `jaxformer train run/config.json --out run`."""
    rundir.write_config(tmp_path, "translation", small())
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(DataError, match=r"model\.max_positions is 8"):
        jaxformer.train(small(cache=str(tmp_path.parent / "cache")), tmp_path, console=quiet())
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("demo", {"model": {"d_model": 10**9}}, r"a model of 24,000,004,076,000,001,024 parameters.* needs at least"),
        ("language_model", {"data": {"text": "a", "batch_size": 10**9}}, "a batch of 1000000000 x 128 tokens needs"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_data_are_read(tmp_path, name, settings, message):
    """On a CPU, the system would kill the process without a message."""
    config = registry.configure(name, **settings)
    with pytest.raises(ConfigError, match=message):
        jaxformer.train(config, tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def test_corrected_settings_can_use_the_same_directory(tmp_path, monkeypatch):
    """A run that ended before its first step does not block it, even if it was killed."""
    monkeypatch.setattr(rundir, "release", lambda *_: None)
    wrong = small(cache=str(tmp_path / "cache"))
    for config in (wrong, dataclasses.replace(wrong, data=dataclasses.replace(wrong.data, vocab_size=500))):
        with pytest.raises(DataError, match=r"model\.max_positions is 8"):
            jaxformer.train(config, tmp_path / "run", console=quiet())
    assert load_tokenizer(tmp_path / "run" / "tokenizer.model").vocab_size == 500
    assert registry.read_config(tmp_path / "run").data.vocab_size == 500


def test_other_data_are_not_scored(tmp_path):
    """Otherwise what is held out may have been trained on."""
    rundir.claim(tmp_path, "translation", small(), ())
    rundir.write_provenance(tmp_path, data={"train": "another", "validation": "one"})
    with pytest.raises(ConfigError, match="a run on other data, by its hash: train was 'another'"):
        jaxformer.evaluate(tmp_path, object())


def test_a_task_without_other_test_data_refuses_it(tmp_path):
    rundir.claim(tmp_path, "language_model", registry.configure("language_model", data={"text": "text"}), ())
    with pytest.raises(ConfigError, match="a run of language_model is scored on its own data, not on other files"):
        jaxformer.evaluate(tmp_path, object(), files=[tmp_path / "text"])


def test_an_invalid_warm_start_is_refused_before_the_data_are_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_prepare", None)
    config = small(cache=str(tmp_path / "cache"))
    for given, message in (("nowhere", "nowhere is not a run"), (str(tmp_path / "run"), "is not a run")):
        with pytest.raises(ConfigError, match=message):
            jaxformer.train(dataclasses.replace(config, init_from=given), tmp_path / "run", console=quiet())
    rundir.claim(tmp_path / "source", "translation", config, ())
    missing = (
        (":average", ConfigError, "has no averaged parameters"),
        ("", training.CheckpointError, "no checkpoint in"),
    )
    for given, kind, message in missing:
        again = dataclasses.replace(config, init_from=f"{tmp_path / 'source'}{given}")
        with pytest.raises(kind, match=message):
            jaxformer.train(again, tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def test_a_damaged_vocabulary_of_a_warm_start_is_named_with_its_path(tmp_path, monkeypatch):
    """Not in the copy, which is removed at once."""
    config = small(cache=str(tmp_path / "cache"))
    rundir.claim(tmp_path / "source", "translation", config, ())
    monkeypatch.setattr(restore, "choose_step", lambda saved, checkpoint: 1)
    (tmp_path / "source" / "checkpoints").mkdir()
    again = dataclasses.replace(config, init_from=str(tmp_path / "source"))
    with pytest.raises(DataError, match=r"source has no tokenizer"):
        jaxformer.train(again, tmp_path / "run", console=quiet())
    (tmp_path / "source" / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"source.tokenizer\.json is damaged"):
        jaxformer.train(again, tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_the_python_lines_of_the_readme(tmp_path, monkeypatch, capsys):
    """From two files to a translation, with a tiny model in place of the default one."""
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    pairs = demo.generate(300)
    (tmp_path / "my.en").write_text("".join(f"{pair.english}\n" for pair in pairs))
    (tmp_path / "my.fr").write_text("".join(f"{pair.french}\n" for pair in pairs))
    (tmp_path / "lines.py").write_text(lines)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
    data = {"vocab_size": 400, "held_out": 20, "num_shapes": 1, "cache": str(tmp_path / "cache")}

    def tiny(name, **settings):
        settings["data"] = settings["data"] | data
        settings["train"] = settings["train"] | {"steps": 2, "validate_every": 2, "tensorboard": False}
        return registry.configure(
            name, **settings, model=sizes, optimizer={"warmup_steps": 1}, decode={"max_ratio": 1.0}
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(vars(jaxformer), "configure", tiny)
    runpy.run_path(str(tmp_path / "lines.py"))
    assert capsys.readouterr().out.startswith("['")


def test_lengths_that_a_mesh_does_not_divide_are_reported_with_a_remedy():
    """A language model has no data.length_multiple."""
    data, placement, said = SimpleNamespace(lengths=(15,)), SimpleNamespace(num_length_shards=2), []
    for name in ("demo", "language_model"):
        runner._report_shapes(registry.configure(name), data, placement, said.append)
    assert said[0] == f"{said[1]}; with --data.length-multiple 2 it does"
    assert said[1].endswith("batches of lengths 15 are not sharded, because 2 does not divide them")


def test_the_number_of_programs_is_said_before_they_are_compiled():
    """Their compilation took minutes on a busy laptop, and nothing told why."""
    placement, said = SimpleNamespace(num_length_shards=1), []
    for name, lengths in (("demo", [13, 17, 21]), ("demo", [13]), ("language_model", [8]), ("vision", [])):
        runner._report_shapes(registry.configure(name), SimpleNamespace(lengths=lengths), placement, said.append)
    assert said == [
        "3 training programs are compiled, one for each batch shape, at its first batch; fewer: --data.num-shapes"
    ]


def test_a_tracker_that_is_not_installed_is_named_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(lazy.importlib.util, "find_spec", lambda name: None)
    config = registry.configure("language_model", data={"text": "nowhere"}, train={"log_to": "wandb"})
    with pytest.raises(
        ConfigError, match=r"train.log_to wandb needs the package wandb: pip install 'jaxformer\[wandb\]'"
    ):
        jaxformer.train(config, tmp_path / "run", console=quiet())
    assert not list(tmp_path.iterdir())


def test_steps_to_profile_are_checked_before_anything_is_read(tmp_path):
    """A training that ends before them would silently leave no trace."""
    config = registry.configure("language_model", data={"text": "nowhere"}, train={"steps": 200})
    with pytest.raises(ConfigError, match="must be in the training, which ends at step 200, got 300:304"):
        jaxformer.train(config, tmp_path / "run", console=quiet(), profile="300:304")
    assert not list(tmp_path.iterdir())


class Told:
    """Replaces the module of Weights & Biases, and its run."""

    __spec__ = importlib.machinery.ModuleSpec("wandb", None)

    def __init__(self):
        self.options, self.logged, self.summary = [], [], {}

    def init(self, **options):
        self.options.append(options)
        self.id = options["id"] or "new"
        return self

    def log(self, values, *, step):
        self.logged.append((step, *values))

    def finish(self, *, exit_code):
        self.logged.append(("finished", exit_code))


@pytest.mark.full
def test_results_may_be_read_without_a_console(tmp_path, capsys, monkeypatch):
    """Progress goes to standard error, so that a script's own output stays clean.

    The tracker that a setting names is told, and a start that resumes the run continues there.
    """
    wandb = Told()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = registry.configure(
        "language_model",
        data={"text": str(tmp_path / "a.txt"), "length": 8, "batch_size": 8, "cache": str(tmp_path / "cache")},
        model={"d_model": 8, "num_heads": 1, "d_ff": 8, "num_layers": 1},
        train={"steps": 1, "validate_every": 1, "tensorboard": False, "log_to": "wandb"},
        optimizer={"schedule": "constant", "warmup_steps": 1},
    )
    (tmp_path / "a.txt").write_text("".join(f"{pair.english}\n" for pair in demo.generate(30)))
    jaxformer.train(config, str(tmp_path / "run"))
    output = capsys.readouterr()
    assert output.out == ""
    assert "validation loss" in output.err
    assert "WARNING" not in output.err
    jaxformer.train(config, str(tmp_path / "run"), console=quiet())
    assert [options["id"] for options in wandb.options] == [None, "new"]
    assert wandb.options[0] == {"id": None, "resume": "allow", "name": "run"}
    assert wandb.logged[0][:2] == (1, "validation/loss")
    assert wandb.logged[1:] == [("finished", 0)] * 2
    same = changed(config, {"data": {"validation": str(tmp_path / "a.txt")}})
    jaxformer.train(same, str(tmp_path / "same"))
    assert "WARNING: the validation data are the training data" in capsys.readouterr().err


def tiny(folder):
    """Without validation, whose program no test here needs."""
    folder.mkdir(exist_ok=True)
    return changed(text.tiny(folder), {"train": {"validate_every": 0}})


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


def test_metrics_are_plain_numbers():
    """They are written to the log, and a JSON of an np.float32 does not exist."""
    placement = sharding.Placement(sharding.mesh("data=1", jax.devices()[:1]))
    loss = lambda params, batch: (batch.sum(), jnp.float32(batch.size), {"correct": jnp.float32(1)})
    network = types.SimpleNamespace(validation_sums=loss, net=None)
    setup = types.SimpleNamespace(placement=placement, network=network, on_devices=iter, rows=np.arange)
    data = types.SimpleNamespace(
        validation_batches=lambda rows, name: [jnp.array([1.0, 2.0]), jnp.array([5.0])],
        validation=None,
        vocabulary=None,
    )
    task = types.SimpleNamespace(
        predictor=lambda *args: None,
        measure=lambda *args: {"r2": np.float32(0.5), "bias": jnp.float32(2), "right": args[-1]["correct"]},
    )
    state = types.SimpleNamespace(params={}, ema_params=None, step=jnp.int32(3))
    metrics = Validation(task, None, None, data, setup)(state)
    assert json.loads(json.dumps(metrics)) == {"loss": 8 / 3, "r2": 0.5, "bias": 2.0, "right": 2.0}
