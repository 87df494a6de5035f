"""The measurement of the data pipeline says which configurations it is for."""

from benchmarks import data_throughput


def test_another_task_is_refused(capsys):
    assert data_throughput.main(["--config", "language_model"]) == 2
    assert capsys.readouterr().err == "error: --config must be of the task translation, got language_model\n"
