"""The lock of a run directory: one holder, who is named; it ends with its process and leaves no files."""

import errno
import fcntl
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from jaxformer import files, locks
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError
from jaxformer.multihost import processes
from jaxformer.tasks import run_lock, rundir
from jaxformer.tasks.runs import read_run
from tests.tasks.small import small

HOLDER = """
import pathlib, sys, time
from jaxformer.tasks import run_lock, rundir
with run_lock.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def enter(out):
    with run_lock.held(out):
        assert (out / rundir.LOCK).exists()


def test_a_second_training_names_the_first(tmp_path, capsys):
    """The files of the first do not change. The code is 1: storage may hold the lock of a lost host for a while."""
    out = tmp_path / "run"
    with run_lock.held(out):
        before = (out / rundir.LOCK).read_bytes()
        assert main(["train", "demo", "--out", str(out)]) == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.endswith(f"; if its host is gone, remove {out / rundir.LOCK}")
        assert f"{out} is in use by process {os.getpid()} on {socket.gethostname()} since 20" in said
        assert json.loads(before)["command"].split()[0] in said
        assert {path.name: path.read_bytes() for path in out.iterdir()} == {rundir.LOCK: before}
    assert not out.exists()


@pytest.mark.parametrize("name", [rundir.LOCK, "log.jsonl"])
def test_training_does_not_write_through_links(name, tmp_path):
    """In another user's run they may point anywhere; folders may be links, as to a larger disk."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path)
    enter(tmp_path / "run")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=f"{name} is a link, through which training would write"):
        enter(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_training_does_not_write_into_another_run(name, tmp_path):
    """Each of the two would remove the checkpoints of the other."""
    (tmp_path / "other" / name).mkdir(parents=True)
    (tmp_path / "other" / "config.json").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "other" / name)
    for out in (tmp_path / "run", tmp_path / "run" / name):  # as `jaxformer average` holds the folder of the average
        with pytest.raises(ConfigError, match=f"{name} is a link to a folder of another run, .*other"):
            enter(out)


@pytest.mark.parametrize("name", ["log.jsonl", "time.json", "tokenizer.model", "checkpoints", "tensorboard"])
def test_a_file_in_place_of_a_folder_is_named_before_anything_is_written(name, tmp_path):
    """And a folder in place of a file: config.json had new settings by then."""
    kind = "file" if "." in name else "folder"
    (tmp_path / name).mkdir() if kind == "file" else (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"{name} must be a {kind}; remove it, or choose another directory"):
        enter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_files_that_another_command_writes_are_not_refused(tmp_path, monkeypatch):
    """`evaluate` renames its temporary file, and removes others, between the list of files and the look at them."""
    (tmp_path / f"{files.TEMPORARY}01234567-scores.json").mkdir()
    names = [f"{files.TEMPORARY}89abcdef-scores.json", "scores-test-best.json", "profile"]
    listed = type(tmp_path).iterdir
    monkeypatch.setattr(type(tmp_path), "iterdir", lambda self: [*listed(self), *(self / name for name in names)])
    enter(tmp_path)


def test_a_process_that_a_signal_ends_leaves_no_lock(tmp_path):
    with run_lock.held(tmp_path / "new" / "run"):
        files.end_all()
        assert not (tmp_path / "new").exists()


def test_a_killed_process_holds_nothing(tmp_path):
    out = tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    command = [sys.executable, "-c", HOLDER, str(out)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(locks.BusyError, match=f"in use by process {holder.pid} "):
            enter(out)
        rundir.claim(out, "translation", small(), ())
        assert read_run(out).state == "running"
        holder.send_signal(signal.SIGKILL)
    assert (out / rundir.LOCK).exists()
    assert read_run(out).state == "killed"
    enter(out)
    assert [path.name for path in out.iterdir()] == ["config.json"]
    assert read_run(out).state == "not started"


def test_listing_runs_does_not_block_training(tmp_path, monkeypatch):
    """It takes the lock for a moment, to see whether it is free."""
    with (tmp_path / rundir.LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        monkeypatch.setattr(locks.time, "sleep", lambda seconds: fcntl.flock(file, fcntl.LOCK_UN))
        enter(tmp_path)


def test_only_files_of_the_lock_are_removed(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    enter(there)
    enter(there / "a" / "b")
    assert list(there.iterdir()) == []
    with run_lock.held(there / "a" / "b"):
        (there / "a" / "log.jsonl").touch()
    assert [path.name for path in (there / "a").iterdir()] == ["log.jsonl"]


def test_a_lock_on_a_removed_file_does_not_count(tmp_path, monkeypatch):
    """Its last holder removed it after this process opened it and before it locked it."""
    lock, calls = fcntl.flock, []

    def late(descriptor, how):
        lock(descriptor, how)
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / rundir.LOCK).unlink()

    monkeypatch.setattr(fcntl, "flock", late)
    with run_lock.held(tmp_path):
        monkeypatch.undo()
        assert len(calls) == 2
        with pytest.raises(locks.BusyError, match="in use"):
            enter(tmp_path)


def test_a_filesystem_without_locks_is_named(tmp_path, monkeypatch, caplog):
    def no_locks(descriptor, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    enter(tmp_path)
    assert f"the filesystem of {tmp_path} has no locks" in caplog.text


@pytest.mark.parametrize(
    ("content", "warned"),
    [
        ({"host": "elsewhere", "process": 7, "since": "2026-01-01", "command": "train x"}, True),
        ({"host": socket.gethostname(), "process": 7, "since": "2026-01-01", "command": "train x"}, False),
        ([], False),
    ],
)
def test_a_lock_file_of_another_host_is_named(tmp_path, caplog, content, warned):
    """A bucket's filesystem may have locks per host only: then the file is the only sign."""
    (tmp_path / rundir.LOCK).write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING):
        enter(tmp_path)
    assert ("in use by process 7 on elsewhere since 2026-01-01 (train x)" in caplog.text) == warned
    assert bool(caplog.records) == warned


@pytest.mark.parametrize("error", [ConfigError, OSError])
def test_the_other_processes_end_like_the_first(tmp_path, monkeypatch, error):
    """They hold no lock, and receive the error."""
    monkeypatch.setattr(processes, "is_first", lambda: False)
    enter_here = run_lock.held(tmp_path / "run")
    monkeypatch.setattr(processes, "all_true", lambda _: True)
    with enter_here:
        assert not (tmp_path / "run").exists()
    answers = iter([False, error is not ConfigError, True])
    monkeypatch.setattr(processes, "all_true", lambda _: next(answers))
    with pytest.raises(error, match="process 0 cannot use"):
        enter(tmp_path / "run")


@pytest.mark.parametrize(("code", "kind"), [(errno.EACCES, ConfigError), (errno.EROFS, ConfigError), (28, OSError)])
def test_a_directory_that_cannot_be_written_is_refused(tmp_path, monkeypatch, code, kind):
    """A full disk may have room later; a read-only one will not."""

    def refused(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locks.os, "pwrite", refused)
    with pytest.raises(kind, match=os.strerror(code)) as caught:
        enter(tmp_path / "a" / "run")
    assert type(caught.value) is kind
    assert str(tmp_path / "a" / "run") in str(caught.value)
    monkeypatch.undo()
    enter(tmp_path / "a" / "run")
    assert list(tmp_path.iterdir()) == []
