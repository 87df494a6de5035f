"""Logs of a run, and their state after a crash."""

import json
import pathlib
import time

import pytest

from jaxformer.training.hooks import Means
from jaxformer.training.logging import JsonLog, TensorBoard, read_log
from tests.training.small import start


def opened(path, step=0):
    log = JsonLog(path)
    log.started(start(steps=100, step=step))
    return log


def test_log_drops_steps_after_the_checkpoint(tmp_path):
    """A process is killed after step 9, its last checkpoint is step 5: the next one writes 6 to 9 again, once."""
    path = tmp_path / "log.jsonl"
    log = opened(path)
    for step in range(1, 10):
        log.step(step, {"loss": float(step)})
    log.ended(9, "done")
    path.write_text(path.read_text() + '{"step": 10, "lo')
    log = opened(path, step=5)
    log.step(6, {"loss": 0.5})
    log.ended(6, "done")
    assert [entry["step"] for entry in read_log(path)] == [1, 2, 3, 4, 5, 6]
    assert read_log(path)[-1]["loss"] == 0.5


def test_a_damaged_line_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    others = b'\0\0\xff\n[]\n7\n{"step": "1"}\n{"step": null}\n{"step": [1]}\n'  # as of an editor or a merge
    path.write_bytes(b'{"step": 1, "loss": 0.1}\n' + others + b'{"step": 3, "loss": 0.3}\n{"step": 4, "lo')
    assert [entry["step"] for entry in read_log(path)] == [1, 3]
    opened(path, step=3).ended(3, "done")
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]


def test_nan_and_infinity_become_null(tmp_path):
    """JSON lacks both."""
    log = opened(tmp_path / "folder" / "log.jsonl")
    log.step(1, {"loss": float("nan"), "rate": float("inf"), "count": 2})
    log.ended(1, "done")
    assert read_log(tmp_path / "folder" / "log.jsonl") == [{"step": 1, "loss": None, "rate": None, "count": 2}]


def test_rewind(tmp_path):
    """The file is replaced as a whole: no other file is left."""
    log = opened(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.step(step, {"loss": float(step)})
    log.went_back(1, "NaN")
    log.step(2, {"loss": 0.5})
    log.ended(2, "done")
    assert [entry["loss"] for entry in read_log(tmp_path / "log.jsonl")] == [1.0, 0.5]
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_full_disk_is_named(tmp_path):
    log = opened(tmp_path / "log.jsonl")
    log._file.close()
    log._file = pathlib.Path("/dev/full").open("w")  # noqa: SIM115 - the log closes it
    with pytest.raises(OSError, match=r"No space left on device: .*log\.jsonl"):
        log.step(1, {"loss": 2.0})
    with pytest.raises(OSError, match="No space left"):
        log.ended(1, "done")


def test_tensorboard_drops_undone_steps(tmp_path):
    """An event at the step after the last valid one tells a reader; each file has its own name."""
    board = TensorBoard(tmp_path)
    board.started(start(steps=9))
    board.validated(1, {"loss": 1.0}, True)
    board.validated(2, {"loss": 2.0}, False)
    board.went_back(1, "NaN")
    board.validated(2, {"loss": 0.5}, True)
    board.went_back(1, "NaN")
    board.ended(1, "done")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    assert [name[-2:] for name in names if name.endswith((".1", ".2"))] == [".1", ".2"]


def test_tensorboard_events_are_written_at_once(tmp_path):
    """A kill after a checkpoint lost up to two minutes of the events that led to it."""
    board = TensorBoard(tmp_path)
    board.started(start(steps=9))
    (file,) = tmp_path.iterdir()
    for name in ("first", "second"):
        board.reported(1, {"loss": 1.0, "tokens": 5.0, name: 2.0}, Means(3.0, 7.0, 0.0))
        limit = time.monotonic() + 20
        while name.encode() not in file.read_bytes() and time.monotonic() < limit:
            time.sleep(0.05)
        assert all(tag in file.read_bytes() for tag in (name.encode(), b"train/loss", b"train/tokens_per_second"))
    board.ended(1, "done")
