"""Lists of runs: every file may be missing, damaged or another program's."""

import json

import pytest

from jaxformer.cli.main import main
from jaxformer.tasks import rundir
from jaxformer.tasks.history import find_runs
from tests.tasks.small import small


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "{", "cannot read"),
        ("config.json", '{"task": "translation", "config": {"train": {"steps": "many"}}}', "damaged file: ValueError"),
        ("scores-test-best.json", '{"test": [{"name": "BLEU"}]}', "damaged file: KeyError"),
        ("provenance.json", "[]", "cannot read"),
    ],
)
def test_a_damaged_run_does_not_hide_the_others(tmp_path, capsys, name, content, said):
    for run in ("a", "b", "c"):
        rundir.claim(tmp_path / run, "translation", small(), ())
    (tmp_path / "b" / name).write_text(content)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text('{"of": "another program"}')
    states = [run.state for run in find_runs(tmp_path)]
    assert (states[0], states[2:]) == ("not started", ["not started"])
    assert said in states[1]
    assert main(["runs", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_setting_that_is_there_twice_is_refused(tmp_path, capsys):
    """Python would take the last one without a word."""
    rundir.claim(tmp_path, "translation", small(), ())
    path = tmp_path / "config.json"
    saved = json.dumps(json.loads(path.read_text()))
    path.write_text(saved.replace('"seed": ', '"seed": 5, "seed": ', 1))
    assert main(["train", str(path), "--out", "x"]) == 2
    assert "'seed' is there twice" in capsys.readouterr().err
