"""The smoke version of the beams."""

import pytest

from experiments.beams import __main__ as beams


@pytest.mark.full
def test_a_smoke_run_resumes(tmp_path, capsys):
    words = ["--smoke", "--out", str(tmp_path)]
    assert beams.main(words) == 0
    first = capsys.readouterr().out
    assert beams.main(words) == 0
    assert first.endswith(capsys.readouterr().out.rpartition("complete\n")[2])
