"""The experiment on several languages: its cases and its smoke version."""

import json

import pytest

from experiments.multilingual import __main__ as command


def test_models_have_the_same_updates_a_direction(tmp_path):
    found = {case: command.configuration(case, 3, tmp_path, 600) for case in command.CASES}
    assert {case: x.train.steps for case, x in found.items() if case in ("en-de", "six", "four")} == {
        "en-de": 600,
        "six": 3600,
        "four": 2400,
    }
    assert (found["de-fr"].data.source, found["de-fr"].data.test_target) == (
        "multi30k/train.de",
        "multi30k/test_2016.fr",
    )
    assert found["fr-de"].data.target_language == "de"
    six = found["six"].data
    assert (len(six.corpora), six.tags, six.source, six.target_language) == (6, "source", "", "")
    assert (six.corpora["fr_en"].source, six.corpora["fr_en"].target_language) == ("multi30k/train.fr", "en")
    assert {"de_fr", "fr_de"}.isdisjoint(found["four"].data.corpora)
    for config in found.values():
        config.check()


def test_a_call_that_finds_nothing_leaves_the_report(tmp_path, capsys):
    (tmp_path / "report.md").write_text("| BLEU | own model |")
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "en-de.json").write_text('{"settings": "of another call"}')
    assert command.main(["--data-dir", str(tmp_path), "--out", str(tmp_path), "--cases", "en-de"]) == 2
    assert "en-de.json must be a result of these settings" in capsys.readouterr().err
    assert (tmp_path / "report.md").read_text() == "| BLEU | own model |"


@pytest.mark.full
def test_the_smoke_version_resumes(tmp_path, capsys):
    arguments = ["--smoke", "--out", str(tmp_path), "--cases", "en-de", "four"]
    assert command.main([*arguments, "--minutes", "0.00001"]) == 85
    assert command.main(arguments) == 0
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[0] == "| BLEU | own model | four |"
    assert [line.split("|")[1].strip() for line in lines[2:8]] == command.DIRECTIONS
    assert json.loads((tmp_path / "records" / "four.json").read_text())["bleu"].keys() == {*command.DIRECTIONS}
    assert not (tmp_path / "four" / "checkpoints").exists()
    capsys.readouterr()
    assert command.main(arguments) == 0
    assert "step 2" not in capsys.readouterr().out
