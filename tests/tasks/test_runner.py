"""The runner: its refusals, and the files that it leaves."""

import dataclasses
import importlib.machinery
import json
import pathlib
import re
import runpy
import sys
from types import SimpleNamespace

import jax
import pytest

import jaxformer
from jaxformer import demo, lazy, training
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import registry, restore, rundir, runner
from jaxformer.tokenizers.loading import load_tokenizer
from tests.contracts.task import quiet
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


def test_a_training_that_ends_in_its_warm_up_is_reported(tmp_path):
    """With the warm-up of the paper, 200 steps reach a twentieth of the learning rate, and seem to learn nothing."""
    said, setup = [], SimpleNamespace(new_state=lambda: None, frozen=None)
    for steps in (200, 4000):
        config = changed(registry.resolve("translation:base"), {"train": {"steps": steps}})
        runner.first_state(config, setup, tmp_path, said.append)
    assert said == ["WARNING: train.steps ends in the warm-up of 4,000 steps, below the peak of the learning rate"]


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


def test_a_checkpoint_is_a_number_of_digits(tmp_path):
    with training.Checkpoints(tmp_path) as saved:
        saved.save(2, {"x": jax.numpy.ones(2)}, {})
        with pytest.raises(ConfigError, match="no checkpoint '²'"):
            restore.choose_step(saved, "²")


@pytest.mark.parametrize(
    ("given", "run", "checkpoint"),
    [
        ("a", "a", "best"),
        ("a:", "a", "best"),
        ("a:last", "a", "last"),
        ("10:30", "10:30", "best"),
        ("10:30:4", "10:30", "4"),
    ],
)
def test_the_run_and_checkpoint_of_a_warm_start(tmp_path, monkeypatch, given, run, checkpoint):
    """A directory may have a colon in its name, as times have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "10:30").mkdir()
    assert registry.split_init(given) == (pathlib.Path(run), checkpoint)


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


def test_frozen_parameters_without_a_warm_start_are_reported(tmp_path):
    """With one line; without frozen parameters, with no line."""
    lines, frozen = [], {"encoder": dict.fromkeys("abcd", True), "output": False}
    for tree in (frozen, None):
        setup = SimpleNamespace(frozen=tree, new_state=lambda: "state")
        assert runner.first_state(small(), setup, tmp_path, lines.append) == "state"
    assert lines == [
        "WARNING: 4 parameters that tune.frozen names keep their initial values, because init_from gives no others: "
        "encoder/a, encoder/b, encoder/c, ..."
    ]


def test_adapters_beside_trained_parameters_are_reported(tmp_path):
    """LoRA freezes nothing by itself; without a pattern, a run trains everything."""
    matrix = jax.ShapeDtypeStruct((2, 2), "float32")
    shapes = {"decoder": {"a": matrix, "b": jax.ShapeDtypeStruct((2,), "float32")}, "lora": {"a": matrix}}
    network = SimpleNamespace(net=SimpleNamespace(shapes=shapes))
    a, b = ({"decoder": {"a": x == "a", "b": x == "b"}, "lora": {"a": False}} for x in "ab")
    for rank, frozen, number in ((2, None, 1), (2, b, 1), (2, a, 0), (0, None, 0)):
        lines = []
        trainer = SimpleNamespace(frozen=frozen, new_state=lambda: "state", network=network)
        runner.first_state(
            changed(small(), {"tune": {"adapters": {"kind": "lora", "rank": rank} if rank else None}}),
            trainer,
            tmp_path,
            lines.append,
        )
        warnings = [line for line in lines if line.startswith("WARNING: tune.adapters")]
        assert len(warnings) == number
        assert all("--tune.frozen 'decoder/*'" in line for line in warnings)


def test_a_table_of_positions_of_another_length_is_extended(tmp_path, monkeypatch):
    """It started at random, with a line that named only its shape."""
    source = small()
    config = changed(source, {"model": {"max_positions": 12}, "init_from": str(tmp_path / "source")})
    rundir.claim(tmp_path / "source", "translation", source, ())
    tables = [{"encoder": {"embeddings": {"positions": {"table": jax.numpy.full((n, 16), float(n))}}}} for n in (8, 12)]
    monkeypatch.setattr(restore, "load_params", lambda *_: (tables[0], (1,)))
    state = training.TrainState(0, tables[1], (), jax.random.key(0), None)
    lines, setup = [], SimpleNamespace(new_state=lambda: state, frozen=None, config=config)
    params = runner.first_state(config, setup, tmp_path, lines.append).params
    assert (params["encoder"]["embeddings"]["positions"]["table"][:8] == 8).all()
    assert any(line.startswith("  resized: encoder/embeddings/positions/table (8 positions there") for line in lines)
    assert json.loads((tmp_path / "init.json").read_text())["resized"].keys() == {"encoder/embeddings/positions/table"}


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


def test_an_average_of_no_checkpoints_is_refused(tmp_path):
    """The last 0 of a list are the whole list."""
    with pytest.raises(ConfigError, match="last must be at least 1, got 0"):
        jaxformer.average(tmp_path, last=0)


def test_reading_a_missing_average_creates_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="has no averaged parameters; run `jaxformer average"):
        restore.restore_params(tmp_path, SimpleNamespace(abstract_state=lambda: None), "average")
    assert not list(tmp_path.iterdir())


def test_reading_checkpoints_creates_no_folder(tmp_path):
    """In a read-only run it would be an error about writing."""
    with pytest.raises(training.CheckpointError, match=r"no checkpoint in .*checkpoints yet"):
        restore.restore_params(tmp_path, SimpleNamespace(abstract_state=lambda: None), "last")
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize(
    ("text", "expected"), [("a/b", ("a/b", "best")), ("a/b:last", ("a/b", "last")), ("a:3", ("a", "3"))]
)
def test_references_of_warm_starts(text, expected):
    run, checkpoint = registry.split_init(text)
    assert (str(run), checkpoint) == expected
