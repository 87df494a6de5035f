"""The experiment on initialization: its cases, its report and its smoke version."""

import json
import sys

import pytest

from experiments.initialization import __main__ as command
from jaxformer.tasks.translation.config import demo
from tests.experiments.smoke import check_resumes


def test_cases_differ_in_the_norm_and_the_initial_kernels(tmp_path):
    found = {case: command.configuration(case, 3, tmp_path, 100) for case in [*command.CASES, command.TORCH]}
    models = {case: (x.model.norm_position, x.model.initialization) for case, x in found.items()}
    assert models["post, xavier"] == ("post", "xavier")
    assert models["pre, scaled"] == ("pre", "scaled")
    assert models[command.TORCH] == ("post", "fairseq")
    assert {(x.seed, x.train.steps, x.optimizer.cooldown) for x in found.values()} == {(3, 100, 0.0)}


def test_the_demo_keeps_its_own_schedule():
    config = command.configuration("pre, xavier", 3, None, 100)
    assert (config.data, config.optimizer) == (demo().data, demo().optimizer)
    assert (config.model.initialization, config.model.attention_bias, config.seed) == ("xavier", False, 3)


def test_the_demo_needs_no_data(tmp_path, monkeypatch):
    configs = []
    monkeypatch.setattr(command, "record", lambda case, config, out, end: configs.append(config) or {})
    monkeypatch.setattr(command, "report", lambda found: "")
    monkeypatch.setattr(command, "draw", lambda found, path: None)
    assert command.main(["--demo", "--cases", "pre, xavier", "--seeds", "1", "--out", str(tmp_path)]) == 0
    assert [config.data for config in configs] == [demo().data]


def test_missing_pytorch_is_reported_at_once(tmp_path, capsys, monkeypatch):
    """Its case is the last one of a seed."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "experiments.initialization.pytorch", raising=False)
    monkeypatch.setattr(command, "record", lambda *given: pytest.fail("a case was trained"))
    assert command.main(["--smoke", "--torch", "--out", str(tmp_path)]) == 2
    assert "--torch needs PyTorch; install it, or leave out --torch" in capsys.readouterr().err


@pytest.mark.full
def test_the_smoke_version_resumes(tmp_path, capsys):
    arguments = ["--smoke", "--out", str(tmp_path), "--cases", "post, xavier", "pre, scaled"]
    assert command.main([*arguments, "--minutes", "0.00001"]) == 85
    lines = check_resumes(command.main, arguments, tmp_path, capsys).splitlines()
    assert lines[0] == "| validation loss after | 3 | 6 | seeds |"
    assert [line.split("|")[1].strip() for line in lines[2:4]] == ["post, xavier", "pre, scaled"]
    assert json.loads((tmp_path / "records" / "pre-scaled-0.json").read_text())["losses"].keys() == {"3", "6"}
    assert (tmp_path / "loss.png").stat().st_size > 5000
    assert not (tmp_path / "pre-scaled-0" / "checkpoints").exists()
