"""``jaxformer demo``: it is the built-in configuration, and stops as `train` does."""

import types

import pytest

from jaxformer.cli import demo
from jaxformer.tasks import registry, runner


@pytest.fixture
def trained(monkeypatch):
    calls = types.SimpleNamespace(configs=[], shown=[], reason="done")

    def fit(config, out, console):
        calls.configs.append(config)
        return types.SimpleNamespace(reason=calls.reason)

    monkeypatch.setattr(runner, "train", fit)
    monkeypatch.setattr(demo, "_show", lambda run: calls.shown.append(run.name) or 0)
    return calls


def test_it_trains_the_built_in_configuration_and_shows_the_result(trained, tmp_path):
    assert demo.main(["--out", str(tmp_path / "run")]) == 0
    assert trained.configs == [registry.resolve("demo")]
    assert trained.shown == ["run"]


def test_settings_can_be_replaced(trained, tmp_path):
    assert demo.main(["--train.steps", "20", "--out", str(tmp_path / "run")]) == 0
    assert trained.configs == [registry.configure("demo", train={"steps": 20})]


@pytest.mark.parametrize(("reason", "code"), [("terminated", 85), ("interrupted", 130)])
def test_a_stopped_training_is_not_shown(trained, tmp_path, reason, code):
    trained.reason = reason
    assert demo.main(["--out", str(tmp_path / "run")]) == code
    assert trained.shown == []
