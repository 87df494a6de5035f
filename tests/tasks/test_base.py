"""The parts of a task that every task shares: settings, costs, and what a task need not say."""

import importlib.util

import pytest

from jaxformer.tasks import registry
from jaxformer.tasks.base import Task, TaskConfig
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.translation import TranslationConfig

CONFIGS = [TranslationConfig(), registry.configure("language_model", model={"vocab_size": 80})]


@pytest.mark.parametrize("kind", [TaskConfig, TranslationConfig, LanguageModelingConfig])
def test_a_seed_is_32_bits(kind):
    assert kind(seed=2**32 - 1).seed == 2**32 - 1
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match="seed must be"):
            kind(seed=seed)


def test_a_task_cannot_be_made_without_its_parts():
    with pytest.raises(TypeError, match=r"abstract methods? .*network"):
        type("Half", (Task,), {"name": "half"})()


@pytest.mark.parametrize("config", CONFIGS)
def test_costs_are_those_of_the_largest_batch(config):
    """Tokens are what is predicted: rows times the last length."""
    task = registry.task_of(config)
    network = task.network(config, task.planned_vocab_size(config))
    num_rows, length = network.largest_batch
    costs = network.costs(network.planned_shape(num_rows, length))
    assert costs.batch[0] == num_rows
    assert set(costs.batch[1:]) == {length}
    assert costs.tokens == num_rows * length
    assert costs.parameters == network.num_parameters
    assert 0 < costs.flops <= costs.computed_flops
    assert str(num_rows) in costs.description
    double = network.costs(network.planned_shape(2 * num_rows, length))
    assert (double.flops, double.tokens) == (2 * costs.flops, 2 * costs.tokens)


@pytest.mark.parametrize("config", CONFIGS)
def test_what_a_task_says_of_itself_is_known_to_the_rest(config):
    """Its commands exist; its figures have names that a run may choose models by."""
    task = registry.task_of(config)
    task.check(config)
    assert isinstance(config, task.config)
    assert all(importlib.util.find_spec(f"jaxformer.cli.{command}") for command in task.commands)
    assert task.default_split in ("test", "validation")
    assert task.vocabulary_files
