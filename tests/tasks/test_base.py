"""What a task gets without writing it."""

import sys
import types

import pytest

from jaxformer import models
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry
from jaxformer.tasks.base import Task, TaskConfig
from jaxformer.tasks.language_model import TASK, LanguageModelingConfig


def test_what_a_network_has_by_default():
    shape = models.LanguageModelConfig(d_model=8, num_heads=2, d_ff=8, num_layers=1, compute_dtype="bfloat16")
    network = TASK.network(LanguageModelingConfig(model=shape), 8)
    assert network.compute_dtype == "bfloat16"
    assert network.planned_shape(3, 5) == (3, 5)


def test_no_smaller_batch_is_offered_by_default():
    config = LanguageModelingConfig()
    assert Task.smaller_batch(TASK, config, 4) == ""
    assert TASK.smaller_batch(config, 4) == "--data.batch_size 4"


def test_a_task_is_registered_from_outside_the_package(monkeypatch, tmp_path):
    """With one line, by the module that holds it."""

    class ParityConfig(TaskConfig):
        pass

    task = types.SimpleNamespace(config=ParityConfig)
    config = changed(ParityConfig(), {"seed": 3})
    with pytest.raises(ConfigError, match=r"ParityConfig is not the configuration of a task in registry\.TASKS"):
        registry.task_of(config)
    monkeypatch.setitem(sys.modules, "my_parity", types.SimpleNamespace(TASK=task))
    monkeypatch.setitem(registry.TASKS, "parity", "my_parity")
    assert registry.task_of(config) is task
    assert registry.get("parity") is task
