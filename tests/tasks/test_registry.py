"""Names of tasks and configurations: all forms of a reference, without running other files."""

import json
import pathlib

import pytest

from jaxformer import functional
from jaxformer.config import changed, from_data, to_data
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry, rundir
from jaxformer.tasks.translation import TranslationConfig


@pytest.fixture
def folder(tmp_path, monkeypatch):
    text = (
        '"""Experiments."""\n'
        "from jaxformer.tasks.translation import TranslationConfig\n"
        "def small():\n    '''A small one.'''\n    return TranslationConfig(name='small')\n"
        "def large():\n    return TranslationConfig(name='large')\n"
        "def _hidden():\n    return None\n"
    )
    (tmp_path / "experiments" / "translation").mkdir(parents=True)
    (tmp_path / "experiments" / "translation" / "mine.py").write_text(text)
    (tmp_path / "one.py").write_text(text.split("def large")[0])
    (tmp_path / "other.py").write_text("def number():\n    return 3\ndef scaled(factor, *rest, bias=1, **more): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "reference",
    ["mine:small", "translation/mine:small", "experiments/translation/mine.py:small", "one.py", "one.py:small"],
)
def test_ways_to_name_a_configuration(folder, reference):
    config = registry.resolve(reference)
    assert (registry.task_of(config).name, config.name) == ("translation", "small")


def test_saved_and_built_in(folder):
    (folder / "config.json").write_text(
        json.dumps({"task": "translation", "config": to_data(TranslationConfig(name="saved"))})
    )
    assert registry.resolve("config.json").name == "saved"
    assert registry.resolve("demo").name == "demo"
    assert registry.resolve("jaxformer.tasks.translation.config:demo").name == "demo"
    assert ("translation/mine:small", "A small one.") in registry.catalog()


def test_listing_runs_nothing(folder):
    """A file is parsed, not run; one that is not Python is listed with the reason, and does not hide the others."""
    (folder / "experiments" / "runs.py").write_text(
        "import sys; sys.exit(3)\ndef one():\n    'One.'\ndef two(x): 'Two.'\ndef three(x=1, *, y): 'Three.'\n"
        "def four() -> dict: 'Four.'\ndef five() -> config.MyConfig: 'Five.'\n"
    )
    (folder / "experiments" / "broken.py").write_text("def")
    (folder / "experiments" / "binary.py").write_bytes(b"\0\xff")
    entries = dict(registry.catalog())
    assert entries["runs:one"] == "One."
    assert entries["runs:five"] == "Five."
    assert not {"runs:two", "runs:three", "runs:four"} & set(entries)
    assert entries["broken"].startswith("cannot be read: SyntaxError: ")
    assert entries["binary"].startswith("cannot be read: ")
    assert entries["translation/mine:small"] == "A small one."


def test_only_the_named_file_is_run(folder):
    """Neither a mistyped name nor a built-in one runs a file below ./experiments."""
    for name in ("trap", "demo"):
        (folder / "experiments" / "translation" / f"{name}.py").write_text("raise OSError('run')\ndef one(): ...\n")
    assert registry.resolve("demo").name == "demo"
    with pytest.raises(ConfigError, match="no configuration 'dmeo'"):
        registry.resolve("dmeo")
    with pytest.raises(OSError, match="run"):
        registry.resolve("trap:one")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("dmeo", "did you mean 'demo'"),
        ("translation:tny", "No module named 'translation'; did you mean 'translation:tiny'"),
        ("mine:smal", "did you mean 'small'"),
        ("mine", "holds small, large; choose one"),
        ("nowhere.py:f", "no configuration file nowhere.py"),
        ("mine:_hidden", "no function '_hidden'"),
        ("../one:small", "no configuration"),
        ("a\0b", "no configuration .*: it holds a NUL"),
        ("no.such.module:f", "No module named 'no'"),
        ("nowhere.json", "cannot read nowhere.json"),
        ("other.py", "returned int, which is not the configuration of a task"),
        ("other.py:scaled", "scaled needs factor; a configuration takes no arguments"),
    ],
)
def test_unknown_names_are_refused(folder, reference, message):
    with pytest.raises(ConfigError, match=message):
        registry.resolve(reference)


@pytest.mark.parametrize("reference", ["multi30k:en_de", "wmt14"])
def test_a_name_of_an_experiment_outside_of_a_clone(tmp_path, monkeypatch, folder, reference):
    """An installed package has no experiments; where there are some, the hint would mislead."""
    with pytest.raises(ConfigError, match="no configuration") as error:
        registry.resolve(reference)
    assert "clone" not in str(error.value)
    monkeypatch.chdir(tmp_path / "experiments")
    with pytest.raises(ConfigError, match=r"no configuration .*; experiments .* a clone of jaxformer: .*; there are "):
        registry.resolve(reference)
    with pytest.raises(ConfigError, match=r"did you mean 'demo'\?$"):
        registry.resolve("dmeo")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef broken(:\n", "wrong.py: .*wrong.py, line 2: invalid syntax"),
        ("raise SystemExit(0)", "wrong.py ends the process"),
        ("def f():\n    exit(85)", "wrong.py ends the process"),
    ],
)
def test_a_program_named_by_mistake_is_refused(folder, source, message):
    """Its exit code would be taken for that of the training."""
    (folder / "wrong.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        registry.resolve("wrong.py")


def test_configure_changes_settings(folder):
    config = registry.configure("one.py", seed=4, train={"steps": 7})
    assert (config.name, config.seed, config.train.steps) == ("small", 4, 7)


@pytest.mark.parametrize("name", registry.TASKS)
def test_every_task_is_registered(name):
    task = registry.get(name)
    assert task.name == name
    assert registry.task_of(task.config()) is task


SIZES = {
    "demo": (2000, 0.92),
    "translation": (8000, 9.4),
    "translation:tiny": (8000, 1.95),
    "translation:small": (8000, 9.4),
    "translation:base": (32_000, 60.5),
    "translation:big": (32_000, 209),
    "language_model": (80, 0.8),
    "language_model:tiny": (80, 0.12),
    "language_model:small": (80, 0.8),
    "language_model:base": (32_000, 110),
    "language_model:big": (32_000, 336),
    "masked_language_model": (8000, 5.3),
    "masked_language_model:tiny": (8000, 1.5),
    "masked_language_model:base": (30_000, 110),
    "vision": (10, 1.8),
    "vision:tiny": (10, 0.55),
    "vision:convolution": (10, 0.7),
    "vision:base": (10, 86),
    "captioning": (2000, 4.5),
    "captioning:tiny": (2000, 0.56),
    "captioning:small": (2000, 4.5),
    "captioning:transformer": (2000, 7.6),
}
"""The vocabulary size and the millions of parameters of built-in configurations."""

FEW = ("demo", "translation:tiny", "classification:tiny", "tagging:tiny")
"""The built-in configurations for which few programs are compiled."""


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_every_built_in_configuration_is_valid_and_of_its_documented_size(folder, name):
    """Validation and checkpoints fall on the last step, so that the last parameters are scored, and saved."""
    config = registry.resolve(name)
    assert dict(registry.catalog())[name]
    assert config.name.replace(" ", "_").replace("-", "_") == name.replace(":", "_")
    config.check()
    assert from_data(type(config), to_data(config)) == config == registry.resolve(name)
    assert config.train.steps % config.train.validate_every == config.train.steps % config.train.checkpoint_every == 0
    assert getattr(config.data, "num_shapes", 3) == (3 if name in FEW else getattr(type(config.data), "num_shapes", 3))
    if name in SIZES:
        vocab_size, millions = SIZES[name]
        network = registry.task_of(config).network(config, vocab_size, functional.attention)
        assert network.num_parameters == pytest.approx(millions * 1e6, rel=0.05)


def test_a_path_names_a_configuration(folder):
    rundir.claim(folder / "run", "translation", registry.resolve("demo"), ())
    assert registry.configure(folder / "run" / "config.json", seed=3).seed == 3


def test_a_run_that_has_begun_does_not_need_the_other(tmp_path):
    """The settings that it took are in its own file; other tasks take none."""
    config = registry.configure("classification")
    (tmp_path / "run").mkdir()
    rundir.write_config(tmp_path / "run", "classification", changed(config, {"model": {"d_model": 24, "num_heads": 2}}))
    gone = changed(config, {"init_from": str(tmp_path / "gone")})
    with pytest.raises(ConfigError, match="gone is not a run"):
        registry.started(gone, tmp_path / "run")  # what a kill before the first step left, perhaps of another start
    (tmp_path / "run" / "log.jsonl").write_text('{"step": 1}\n')
    assert registry.started(gone, tmp_path / "run").model.d_model == 24
    with pytest.raises(ConfigError, match="gone is not a run"):
        registry.started(gone, tmp_path / "new")
    other = changed(registry.configure("language_model"), {"init_from": str(tmp_path / "gone")})
    assert registry.started(other) == other


def test_a_run_may_have_the_name_of_a_file(tmp_path):
    rundir.claim(tmp_path / "first.json", "translation", registry.resolve("demo"), ())
    assert registry.read_config(tmp_path / "first.json") == registry.resolve("demo")


def test_a_run_is_named_by_its_file(tmp_path):
    """The message listed all built-in configurations."""
    rundir.write_config(tmp_path, "translation", TranslationConfig(seed=5))
    with pytest.raises(ConfigError, match=r"the settings of this run are .*config\.json$") as caught:
        registry.resolve(str(tmp_path))
    assert registry.resolve(str(caught.value).rpartition(" ")[2]).seed == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"task": "translatoin", "config": {}}', "unknown task 'translatoin'; did you mean 'translation'"),
        ('{"task": [], "config": {}}', r"task \[\]"),
        ('{"task": "vision", "config": {"sede": 1}}', r"config\.json: unknown setting 'sede'; did you mean 'seed'"),
        ('{"model_type": "gpt2"}', "holds a model of Hugging Face: jaxformer convert makes a run of it"),
        ("[1]", "not hold a JSON object"),
        ("{", "cannot read"),
        ("[" * 100_000, "cannot read"),
    ],
    ids="misspelled kind setting theirs list cut deep".split(),
)
def test_a_config_that_cannot_be_used_is_refused(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        registry.read_config(tmp_path)


def test_a_run_of_another_format_names_the_version_that_reads_it(tmp_path):
    """Before choices had settings of their own, decay_steps stood beside the schedule."""
    saved = {"task": "translation", "config": {"optimizer": {"kind": "adam", "decay_steps": 0}}}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ConfigError, match=r"config\.json: unknown setting 'optimizer\.decay_steps'"):
        registry.read_config(tmp_path)
    (tmp_path / "provenance.json").write_text(json.dumps({"starts": [{"commit": "abc"}]}))
    with pytest.raises(ConfigError, match=r"is of another version of jaxformer; that of commit abc reads it \(unknown"):
        registry.read_config(tmp_path)


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
