"""The measurement of the data pipeline says which configurations it is for."""

import pytest

from benchmarks import data_throughput


def test_another_task_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["data_throughput.py", "--config", "language_model"])
    with pytest.raises(SystemExit):
        data_throughput.main()
    assert "--config must be of the task translation, got language_model" in capsys.readouterr().err
