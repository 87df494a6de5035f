"""``jaxformer average``: what the runner is asked for, and what is printed."""

import pytest

from jaxformer.cli import average, main
from jaxformer.tasks import runner


def test_the_last_checkpoints_are_averaged(monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(runner, "average", lambda run, **options: asked.append((run, options)) or [4, 6])
    assert average.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "averaged steps 4, 6; use it with --checkpoint average\n"
    assert average.main([str(tmp_path), "--last", "2", "--mesh", "data=4"]) == 0
    assert asked == [(tmp_path, {"last": 5, "mesh": ""}), (tmp_path, {"last": 2, "mesh": "data=4"})]


@pytest.mark.parametrize("number", ["0", "-1"])
def test_at_least_one_checkpoint(capsys, number):
    assert main.main(["average", "run", "--last", number]) == 2
    assert f"last must be at least 1, got {number}" in capsys.readouterr().err
