"""The experiment on translation: its report, and its smoke version, which resumes."""

import json

import pytest

from experiments.translation import __main__ as command
from experiments.translation import multi30k
from jaxformer.errors import ConfigError


def record(bleu, seconds=90.0):
    score = lambda value: {"name": "BLEU", "value": value, "signature": "tok:13a"}
    return {
        "averaged": [2, 4],
        "seconds": {"stepping": seconds, "compiling": 30.0},
        "scores": {"validation": [score(bleu + 1)], "test": [score(bleu)]},
        "facts": {"date": "2026-01-01", "processor": "X, 2 cores", "jax": "1", "commit": ""},
    }


def test_the_report_has_means_and_the_time():
    lines = command.report("en-de", [record(40.0), record(42.0, 210.0)]).splitlines()
    assert lines[0] == "en-de, average of 2 checkpoints"
    assert lines[2] == "| seed | BLEU, validation | BLEU, test | minutes | of these compiling |"
    assert lines[4:7] == [
        "| 0 | 41.00 | 40.00 | 2.00 | 0.50 |",
        "| 1 | 43.00 | 42.00 | 4.00 | 0.50 |",
        "| mean | 42.0 ± 12.7 | 41.0 ± 12.7 | | |",
    ]
    assert lines[-2:] == ["2026-01-01, X, 2 cores, jax 1, commit unknown", "- BLEU: tok:13a"]


def test_unknown_settings_are_refused(tmp_path, capsys):
    assert command.main(["--out", str(tmp_path), "--set", "train.stepz=5"]) == 2
    assert "train.stepz" in capsys.readouterr().err


def test_an_average_of_other_checkpoints_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(command.command, "record", lambda path, config, make: {"last": 10})
    assert command.reproduced(multi30k.en_de(), tmp_path, 10, 0.0) == {"last": 10}
    with pytest.raises(ConfigError, match=r"seed-0\.json is an average of 10 checkpoints, not of 5; choose another"):
        command.reproduced(multi30k.en_de(), tmp_path, 5, 0.0)


@pytest.mark.full
def test_the_smoke_version_resumes(tmp_path, capsys):
    arguments = ["--smoke", "--out", str(tmp_path), "--average", "2", "--seeds", "2"]
    assert command.main([*arguments, "--minutes", "0.00001"]) == 85
    assert command.main(arguments) == 0
    text = (tmp_path / "report.md").read_text()
    assert [line.split("|")[1].strip() for line in text.splitlines()[4:7]] == ["0", "1", "mean"]
    found = json.loads((tmp_path / "records" / "seed-1.json").read_text())
    assert found["averaged"] == [4, 6]
    assert {score["name"] for score in found["scores"]["test"]} > {"BLEU", "chrF2"}
    capsys.readouterr()
    assert command.main(arguments) == 0
    assert text in capsys.readouterr().out
    assert command.main([*arguments, "--set", "train.steps=9"]) == 0  # the smoke version has its own
    assert command.main([*arguments, "--set", "optimizer.learning_rate=0.5"]) == 2
    assert "must be a result of these settings" in capsys.readouterr().err
