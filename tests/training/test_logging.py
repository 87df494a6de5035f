"""Logs of a run, and their state after a crash."""

import json
import pathlib

import pytest

from jaxformer.training.logging import JsonLog, TensorBoard, read_log


def test_log_drops_steps_after_the_checkpoint(tmp_path):
    """A process is killed after step 9, its last checkpoint is step 5: the next one writes 6 to 9 again, once."""
    path = tmp_path / "log.jsonl"
    log = JsonLog(path)
    for step in range(1, 10):
        log.write(step, loss=float(step))
    log.close()
    path.write_text(path.read_text() + '{"step": 10, "lo')
    log = JsonLog(path, step=5)
    log.write(6, loss=0.5)
    log.close()
    assert [entry["step"] for entry in read_log(path)] == [1, 2, 3, 4, 5, 6]
    assert read_log(path)[-1]["loss"] == 0.5


def test_a_damaged_line_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 0.1}\n\0\0\xff\n[]\n{"step": 3, "loss": 0.3}\n{"step": 4, "lo')
    JsonLog(path, step=3).close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]


def test_nan_and_infinity_become_null(tmp_path):
    """JSON lacks both."""
    log = JsonLog(tmp_path / "folder" / "log.jsonl")
    log.write(1, loss=float("nan"), rate=float("inf"), count=2)
    log.close()
    assert read_log(tmp_path / "folder" / "log.jsonl") == [{"step": 1, "loss": None, "rate": None, "count": 2}]


def test_rewind(tmp_path):
    """The file is replaced as a whole: no other file is left."""
    log = JsonLog(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.write(step, loss=float(step))
    log.rewind(1)
    log.write(2, loss=0.5)
    log.close()
    assert [entry["loss"] for entry in read_log(tmp_path / "log.jsonl")] == [1.0, 0.5]
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_full_disk_is_named(tmp_path):
    log = JsonLog(tmp_path / "log.jsonl")
    log._file.close()
    log._file = pathlib.Path("/dev/full").open("w")  # noqa: SIM115 - the log closes it
    log.write(1, loss=2.0)
    with pytest.raises(OSError, match=r"No space left on device: .*log\.jsonl"):
        log.flush()
    with pytest.raises(OSError, match="No space left"):
        log.close()


def test_lines_that_are_not_entries_are_left_out(tmp_path):
    """An editor or a merge may leave such lines."""
    lines = ['{"step": "1"}', '{"step": null}', '{"step": [1]}', "[]", "7", '{"step": 1, "loss": 2.0}']
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    assert read_log(tmp_path / "log.jsonl") == [{"step": 1, "loss": 2.0}]
    JsonLog(tmp_path / "log.jsonl", step=1).close()
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1, "loss": 2.0}\n'


def test_tensorboard_drops_undone_steps(tmp_path):
    """An event at the step after the last valid one tells a reader; each file has its own name."""
    board = TensorBoard(tmp_path)
    board.write(1, loss=1.0)
    board.write(2, loss=2.0)
    board.rewind(1)
    board.write(2, loss=0.5)
    board.rewind(1)
    board.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    assert [name[-2:] for name in names if name.endswith((".1", ".2"))] == [".1", ".2"]
