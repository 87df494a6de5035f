"""The parts that every task shares: settings, costs, and defaults."""

import importlib.metadata
import re
import sys
import types

import jax
import pytest

from jaxformer.cli.main import COMMANDS, main
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.sharding import mesh
from jaxformer.tasks import planner, registry
from jaxformer.tasks.base import Splits
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.planner import planned_setup
from jaxformer.tasks.translation import TranslationConfig

CONFIGS = [TranslationConfig(), registry.configure("language_model", model={"vocab_size": 80})]


@pytest.mark.parametrize("config", CONFIGS)
def test_costs_are_those_of_the_largest_batch(config):
    """Tokens are the predicted ones: rows times the last length."""
    setup = planned_setup(config, mesh("data=1", jax.devices()[:1]))
    network = setup.network
    num_rows, length = network.largest_batch
    costs = setup.costs(setup.abstract_batch(num_rows, length))
    assert costs.batch[0] == num_rows
    assert set(costs.batch[1:]) == {length}
    assert costs.tokens == num_rows * length
    assert costs.parameters == network.num_parameters
    assert 0 < costs.flops <= costs.computed_flops
    assert str(num_rows) in costs.description
    double = setup.costs(setup.abstract_batch(2 * num_rows, length))
    assert (double.flops, double.tokens) == (2 * costs.flops, 2 * costs.tokens)


@pytest.mark.parametrize(
    ("name", "model", "length", "counted", "described"),
    [
        ("vision:tiny", {"num_classes": 2}, 1, (16, "images"), "16 images of 32 x 32 pixels"),
        ("classification:tiny", {"num_classes": 2}, 9, (16, "texts"), "16 x 9 tokens"),
        ("captioning:tiny", {}, 9, (144, "tokens"), "16 images of 64 x 64 pixels and 16 x 9 tokens"),
    ],
)
def test_costs_count_the_terms_of_the_loss(name, model, length, counted, described):
    """A classifier has one term for each text or image of any length."""
    setup = planned_setup(registry.configure(name, model=model), mesh("data=1", jax.devices()[:1]))
    one, many = (setup.costs(setup.abstract_batch(rows, length)) for rows in (1, 16))
    assert (many.tokens, many.unit, many.description) == (*counted, described)
    assert many.flops == 16 * one.flops > 0


@pytest.mark.parametrize("config", CONFIGS)
def test_commands_and_metrics_of_a_task_are_known(config):
    """Its commands exist; a run may choose models by its metrics."""
    task = registry.task_of(config)
    config.check()
    assert isinstance(config, task.config)
    assert {*task.commands} <= COMMANDS.keys()
    assert task.default_split in ("test", "validation")
    assert task.vocabulary_files


def test_a_smaller_batch_is_suggested_if_training_accepts_it():
    """Batches of a token budget have multiples of 8 rows."""
    config = changed(LanguageModelingConfig(), {"model": {"vocab_size": 8}})
    assert planner._batch_option(config, 4, 256) == "--data.batch_size 4"
    assert planner._batch_option(TranslationConfig(), 16, 256) == "--data.tokens_per_batch 4096"
    assert planner._batch_option(TranslationConfig(), 4, 256) == ""
    assert planner._batch_option(TaskConfig(), 4, 256) == ""


def test_a_task_is_registered_from_outside_the_package(monkeypatch, tmp_path):
    """With one line, by the module that holds it."""

    class ParityConfig(TaskConfig):
        task = "parity"

    task = types.SimpleNamespace(name="parity", config=ParityConfig)
    config = changed(ParityConfig(), {"seed": 3})
    with pytest.raises(ConfigError, match=r"unknown task 'parity'.* an entry point of the group jaxformer\.tasks"):
        registry.task_of(config)
    with pytest.raises(ConfigError, match=r"TaskConfig is not the configuration of a task in registry\.TASKS"):
        registry.task_of(TaskConfig())
    monkeypatch.setitem(sys.modules, "my_parity", types.SimpleNamespace(TASK=task))
    monkeypatch.setitem(registry.TASKS, "parity", "my_parity")
    assert registry.task_of(config) is task
    assert registry.get("parity") is task
    again = type("ParityConfig", (TaskConfig,), {"task": "parity", "__module__": "jaxformer_config_1"})()
    with pytest.raises(ConfigError, match=r"takes a tests\.\S+ParityConfig, got a jaxformer_config_1.*not by the path"):
        registry.task_of(again)


def test_a_task_of_another_package_is_an_entry_point(monkeypatch):
    """A run of it is read by any process, without a line that registers it; its name is a configuration of defaults."""

    class ParityConfig(TaskConfig):
        task = "parity"

    offered = importlib.metadata.EntryPoints(
        [importlib.metadata.EntryPoint("parity", "my_parity", "jaxformer.tasks")]
    ).select
    monkeypatch.setattr(importlib.metadata, "entry_points", offered)
    monkeypatch.setattr(registry, "TASKS", dict(registry.TASKS))
    task = types.SimpleNamespace(name="parity", config=ParityConfig)
    monkeypatch.setitem(sys.modules, "my_parity", types.SimpleNamespace(TASK=task))
    assert ("parity", "The task of my_parity.") in registry.catalog()
    assert registry.configure("parity", seed=3) == ParityConfig(seed=3)
    assert registry.get("parity") is task
    with pytest.raises(ConfigError, match="unknown task 'party'; did you mean 'parity'"):
        registry.get("party")


OWN_TASK = """
import dataclasses
from jaxformer.tasks.language_model import TASK, LanguageModelingConfig

class OwnConfig(LanguageModelingConfig):
    task = {task}

def tiny():
    return OwnConfig()

TASK = dataclasses.replace(TASK, config={config})
"""


@pytest.mark.parametrize(
    ("reference", "task", "config", "message"),
    [
        ("own", "'own'", "LanguageModelingConfig", r"whose task is 'language_model', .* task = \"own\""),
        ("my_own_task:tiny", "LanguageModelingConfig.task", "OwnConfig", "OwnConfig the line task ="),
    ],
)
def test_a_task_that_would_train_another_one_is_refused(
    tmp_path, monkeypatch, capsys, reference, task, config, message
):
    (tmp_path / "my_own_task.py").write_text(OWN_TASK.format(task=task, config=config))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_task", raising=False)
    monkeypatch.setitem(registry.TASKS, "own", "my_own_task")
    words = ["train", reference, "--out", str(tmp_path / "run"), "--data.text", str(tmp_path / "nowhere.txt")]
    assert main(words) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_splits():
    """They have hashes and names; the error for a missing one has the option that adds it."""
    train, validation, test = (types.SimpleNamespace(fingerprint=text) for text in "abc")
    assert Splits(train, validation, test).fingerprints == {"train": "a", "validation": "b"}
    assert Splits(train, validation, test).part("test") is test
    assert Splits(train, validation, None).part("validation") is validation
    message = r"no test data: train with --data\.test PATH, or use --split validation"
    with pytest.raises(DataError, match=message):
        Splits(train, validation, None).part("test", source="PATH")
