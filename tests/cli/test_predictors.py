"""Predictors of runs: what a mesh divides, and tasks without ensembles; `wrong_commands.txt` has the other refusals."""

import types

import pytest

from jaxformer.cli import predictors
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError
from jaxformer.tasks.classification import ClassificationConfig


@pytest.mark.parametrize(
    ("command", "said"), [("translate", "all devices share the sentences"), ("generate", "each device computes all")]
)
def test_the_help_explains_the_devices_of_a_mesh(command, said, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_task_without_ensembles_refuses_them(monkeypatch, tmp_path):
    monkeypatch.setattr(predictors, "load", lambda options, config: types.SimpleNamespace(steps=(4,)))
    options = types.SimpleNamespace(run=tmp_path, ensemble=[tmp_path])
    with pytest.raises(ConfigError, match="a run of classification, which has no ensembles"):
        predictors.load_ensemble(options, ClassificationConfig())
