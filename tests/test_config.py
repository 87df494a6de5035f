"""Configurations: strict reading, nearest names, every way of naming one."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.config import ConfigError, catalog, fingerprint, from_data, resolve, to_data
from jaxformer.tasks.translation_config import TranslationConfig


def test_round_trip_through_json():
    config = TranslationConfig(name="é", seed=3)
    assert from_data(TranslationConfig, json.loads(json.dumps(to_data(config)))) == config


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["seed", "name"]), st.integers(1, 9))
def test_fingerprint_follows_every_setting(name, value):
    config = TranslationConfig()
    changed = dataclasses.replace(config, **{name: str(value) if name == "name" else value})
    assert fingerprint(changed) != fingerprint(config)
    assert fingerprint(dataclasses.replace(config)) == fingerprint(config)


@pytest.mark.parametrize("place", [{"mesh": "fsdp=8"}, {"data": {"cache": "/tmp"}}, {"data": {"directory": "/data"}}])
def test_fingerprint_does_not_know_the_place(place):
    """What one machine started, another may go on with."""
    assert fingerprint(from_data(TranslationConfig, place)) == fingerprint(TranslationConfig())
    assert fingerprint(from_data(TranslationConfig, {"data": {"source": "my.en"}})) != fingerprint(TranslationConfig())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"sede": 1}, r"unknown setting 'sede'; did you mean 'seed'\?"),
        ({"train": {"stepz": 1}}, r"unknown setting 'train\.stepz'; did you mean 'steps'\?"),
        ({"seed": 2.5}, "seed: got 2.5, expected int"),
        ({"seed": True}, "seed: got True, expected int"),
        ({"seed": "1"}, "seed: got '1', expected int"),
        (
            {"model": {"norm_position": "sideways"}},
            "model.norm_position: got 'sideways', expected one of",
        ),
        ({"model": {"d_model": 100, "num_heads": 3}}, r"model: d_model \(100\) must be divisible by num_heads \(3\)"),
        ({"data": {"columns": [1]}}, r"data.columns: got \[1\]"),
        ({"data": 3}, "data: expected a table of settings"),
    ],
)
def test_bad_data_is_named(data, message):
    with pytest.raises(ConfigError, match=message):
        from_data(TranslationConfig, data)


def test_an_int_may_stand_for_a_float():
    assert from_data(TranslationConfig, {"optimizer": {"learning_rate": 1}}).optimizer.learning_rate == 1.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    text = (
        '"""Experiments."""\n'
        "from jaxformer.tasks.translation_config import TranslationConfig\n"
        "def small():\n    '''A small one.'''\n    return TranslationConfig(name='small')\n"
        "def large():\n    return TranslationConfig(name='large')\n"
        "def _hidden():\n    return None\n"
    )
    (tmp_path / "experiments" / "translation").mkdir(parents=True)
    (tmp_path / "experiments" / "translation" / "mine.py").write_text(text)
    (tmp_path / "one.py").write_text(text.split("def large")[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "reference",
    ["mine:small", "translation/mine:small", "experiments/translation/mine.py:small", "one.py", "one.py:small"],
)
def test_ways_to_name_a_configuration(folder, reference):
    task, config = resolve(reference)
    assert (task, config.name) == ("translation", "small")


def test_saved_and_built_in(folder):
    (folder / "config.json").write_text(
        json.dumps({"task": "translation", "config": to_data(TranslationConfig(name="saved"))})
    )
    assert resolve("config.json")[1].name == "saved"
    assert resolve("demo")[1].name == "demo"
    assert resolve("jaxformer.tasks.builtin:demo")[1].name == "demo"
    assert ("translation/mine:small", "A small one.") in catalog()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def", "SyntaxError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_broken_file_is_in_nobodys_way(folder, text, reason):
    (folder / "experiments" / "broken.py").write_text(text)
    listed = dict(catalog())
    assert listed["broken"].startswith(f"cannot be read: {reason}")
    assert listed["translation/mine:small"] == "A small one."


def test_a_function_that_needs_arguments_is_no_configuration(folder):
    with (folder / "one.py").open("a") as file:
        file.write("def scaled(factor, *rest, bias=1, **more):\n    return None\n")
    assert resolve("one.py")[1].name == "small"
    with pytest.raises(ConfigError, match="scaled needs factor; a configuration takes no arguments"):
        resolve("one.py:scaled")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("dmeo", "did you mean 'demo'"),
        ("mine:smal", "did you mean 'small'"),
        ("mine", "holds small, large; say which"),
        ("nowhere.py:f", "no configuration file nowhere.py"),
        ("mine:_hidden", "no function '_hidden'"),
        ("../one:small", "no configuration"),
        ("no.such.module:f", "No module named 'no'"),
        ("nowhere.json", "cannot read nowhere.json"),
    ],
)
def test_names_that_lead_nowhere(folder, reference, message):
    with pytest.raises(ConfigError, match=message):
        resolve(reference)
