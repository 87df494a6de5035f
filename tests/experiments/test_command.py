"""Experiments train each cell once, save its record, and end in time."""

import argparse
import errno
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import jax
import pytest

from experiments import command, program
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.files import replacing
from jaxformer.tasks.config import TaskConfig

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.parametrize("name", ["activations", "beams", "cues", "extrapolation", "pronouns"])
def test_a_smoke_run_resumes(name, tmp_path, capsys):
    """The second call makes no record again, and prints the same table."""
    main, words = importlib.import_module(f"experiments.{name}.__main__").main, ["--smoke", "--out", str(tmp_path)]
    records = lambda: {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()}
    with jax.numpy_dtype_promotion("standard"):  # a schedule of optax multiplies an integer
        assert main(words) == 0
    first, made = capsys.readouterr().out, records()
    assert main(words) == 0
    assert first.endswith(capsys.readouterr().out.rpartition("complete\n")[2])
    assert made == records()


def test_a_record_is_made_once_and_belongs_to_its_settings(tmp_path):
    path, calls = tmp_path / "records" / "a.json", []
    make = lambda: calls.append(1) or {"figure": 2.5, "said": "é"}
    first = command.record(path, TaskConfig(), make)
    assert first["figure"] == 2.5
    assert command.record(path, TaskConfig(mesh="data=8"), make) == first  # the mesh changes no result
    with pytest.raises(ConfigError, match=r"a\.json must be a result of these settings, got others; choose another"):
        command.record(path, TaskConfig(seed=1), make)
    assert len(calls) == 1
    path.write_text("{}")  # of an older version
    with pytest.raises(ConfigError, match=r"a\.json must be a result of these settings, got others; choose another"):
        command.record(path, TaskConfig(), make)


def test_a_record_that_cannot_be_made_is_missing(tmp_path):
    def make():
        raise command.Stopped("the time is up")

    with pytest.raises(command.Stopped):
        command.record(tmp_path / "a.json", TaskConfig(), make)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def trained(monkeypatch):
    """The configurations and hooks of trainings; each ends with the next reason in the list."""
    calls, reasons = [], ["done"]

    def train(config, run, *, hooks):
        calls.append((config, run, hooks))
        return types.SimpleNamespace(reason=reasons.pop(), state=types.SimpleNamespace(step=1007))

    monkeypatch.setattr(command.jaxformer, "train", train)
    return calls, reasons


def test_a_training_gets_the_time_that_is_left(tmp_path, trained):
    """Less the time to save it; without a limit, a training has none."""
    calls, reasons = trained
    reasons += ["done"]
    command.train(TaskConfig(), tmp_path, command.end_of_call(0), hooks=["hook"])
    assert calls[0] == (TaskConfig(), tmp_path, ["hook"])
    command.train(TaskConfig(), tmp_path, command.end_of_call(5))
    minutes = calls[1][0].train.minutes
    assert 4 < minutes < 5 - command.SAVING / 60
    assert calls[1][0] == changed(TaskConfig(), {"train": {"minutes": minutes}})


def test_a_training_and_its_measures_are_one_record(tmp_path, trained):
    calls, _ = trained
    for _ in range(2):
        found = command.trained(TaskConfig(), "cell", tmp_path, command.end_of_call(0), lambda: {"figure": 2})
    assert (found["figure"], found["seconds"], len(calls)) == (2, 0, 1)
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["cell.json"]
    command.publish(tmp_path, "text")
    assert (tmp_path / "report.md").read_text() == "text"


def test_the_seconds_of_a_training_are_those_of_all_its_calls(tmp_path, trained):
    starts = [{"seconds": {"stepping": 3.5, "saving": 0.5}}, {"seconds": {"stepping": 8.0}}]
    (tmp_path / "time.json").write_text(json.dumps(starts))
    assert command.train(TaskConfig(), tmp_path, command.end_of_call(0)) == 12.0


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many"])
def test_a_number_of_seeds_is_at_least_1(text):
    assert command.count("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match=r"it must be a whole number of at least 1, got"):
        command.count(text)


@pytest.mark.parametrize("minutes", [-1.0, float("nan")])
def test_a_call_of_negative_minutes_is_refused(minutes):
    """Exit code 85 would request the same command again, forever; NaN meant no limit."""
    with pytest.raises(ConfigError, match="--minutes must be at least 0, got"):
        command.end_of_call(minutes)


def test_a_training_that_stops_early_ends_the_call(tmp_path, trained):
    calls, reasons = trained
    reasons += ["minutes"]
    with pytest.raises(command.Stopped, match=r"^cell was stopped \(minutes\) at step 1,007; the same command resumes"):
        command.train(TaskConfig(), tmp_path / "cell", float("inf"))
    with pytest.raises(command.Stopped, match=r"^the time is up before cell; the same command resumes there"):
        command.train(TaskConfig(), tmp_path / "cell", time.monotonic() + 1.9 * command.SAVING)
    assert len(calls) == 1


@pytest.mark.full
def test_a_program_uses_the_compile_cache(tmp_path):
    """In the user's cache, unless JAX has another setting."""
    report = "lambda: print(jax.config.jax_compilation_cache_dir)"
    program = f"import jax; from experiments import command; command.script({report})"
    known = {name: text for name, text in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    for given, found in (
        ({}, tmp_path / "jaxformer" / "programs"),
        ({"JAX_COMPILATION_CACHE_DIR": "/there"}, "/there"),
    ):
        env = known | {"XDG_CACHE_HOME": str(tmp_path)} | given
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.stdout == f"{found}\n", done.stderr


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full", "a.json"), ConfigError("wrong")])
def test_an_error_is_one_line(error, capsys, tmp_path):
    def run(_):
        raise error

    assert command.exit_code(run, argparse.Namespace(out=tmp_path)) == getattr(error, "exit_code", 1)
    assert capsys.readouterr().err == f"error: {error}\n"


def test_a_reader_that_has_gone_is_no_error(capfd, monkeypatch, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert command.exit_code(lambda _: print("a table"), argparse.Namespace(out=tmp_path)) == 141
    assert capfd.readouterr().err == ""


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert command.exit_code(lambda _: print("work"), argparse.Namespace(out=tmp_path / "file")) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: [Errno 20] Not a directory: '{tmp_path / 'file' / 'report.md'}'\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 85)])
def test_a_signal_leaves_no_temporary_file(number, code, capsys, tmp_path):
    def run(_):
        with replacing(tmp_path / "record.json") as temporary:
            temporary.touch()
            os.kill(os.getpid(), number)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as during the imports
        program.raise_signals()
        assert command.exit_code(run, argparse.Namespace(out=tmp_path)) == code
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert capsys.readouterr().err == "stopped; the same command resumes here\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_program_has_large_pages_and_its_exit_code():
    """The process is replaced once, by the same command; a user's setting is kept."""
    program = "import os; from experiments import command; command.script(lambda: print(os.environ[%r]) or 85)"
    words = [sys.executable, "-c", program % "GLIBC_TUNABLES"]
    known = {name: text for name, text in os.environ.items() if name != "GLIBC_TUNABLES"}
    for given, found in (({}, "glibc.malloc.hugetlb=1"), ({"GLIBC_TUNABLES": ""}, "")):
        done = subprocess.run(words, env=known | given, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (85, f"{found}\n"), done.stderr


def test_the_folder_of_data_is_the_one_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFORMER_DATA", "~/corpora")
    assert command.data_directory(None, "texts") == pathlib.Path.home() / "corpora"
    assert command.data_directory(tmp_path, "texts") == tmp_path


UNNAMED = "--data-dir, or JAXFORMER_DATA, must name the folder of "
COUNT = "it must be a whole number of at least 1, got "
REFUSED = [
    ("captioning", "", f"{UNNAMED}nlvr_captions"),
    ("captioning", "--smoke --models hard", "--models must name soft, too"),
    ("classification", "", "--pretrained must name"),
    ("classification", "--pretrained .", f"{UNNAMED}the corpora"),
    ("classification", "--data-dir . --pretrained . --ways lorra", "invalid choice: 'lorra'"),
    ("data_ranking", "--data-dir none", "multi30k/val.en"),
    ("data_ranking", "--smoke --first -5", f"{COUNT}-5"),  # it would be all but the last ones
    ("docstrings", "--smoke --seeds 0", f"{COUNT}0"),
    ("docstrings", "--smoke --minutes -1", "--minutes must be at least 0, got -1"),
    ("initialization", "", f"{UNNAMED}multi30k"),
    ("initialization", "--demo --data-dir .", "--demo has data of its own"),
    ("pretraining", "", f"{UNNAMED}the corpora"),
    ("pretraining", "--smoke --steps 0", f"{COUNT}0"),
    ("recurrent_translation", "", f"{UNNAMED}multi30k/ and tatoeba/"),
    ("recurrent_translation", "--smoke --minutes -1", "--minutes must be at least 0, got -1"),
    ("translation", "--methods ensemble --seeds 2", "ensemble needs a method of training among --methods"),
    ("translation", "--methods plain distilled", "distilled needs --seeds 2 or more"),
    ("translation", "--set train.stepz=5", "train.stepz"),
    ("translation", "--smoke --average 0", f"{COUNT}0"),
    ("vision", "", f"{UNNAMED}cifar10_subset and mnist"),
]


@pytest.mark.parametrize(("name", "words", "message"), REFUSED)
def test_wrong_options_are_refused_before_any_work(tmp_path, capsys, monkeypatch, name, words, message):
    """With exit code 2, and nothing is written."""
    monkeypatch.delenv("JAXFORMER_DATA", raising=False)
    main = importlib.import_module(f"experiments.{name}.__main__").main
    try:
        code = main(["--out", str(tmp_path / "out"), *words.split()])
    except SystemExit as exit:  # of argparse
        code = exit.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_early_stopping_is_an_end_and_ctrl_c_is_not(trained, tmp_path):
    calls, reasons = trained
    reasons += ["patience"]
    for _ in range(2):
        command.train(TaskConfig(), tmp_path / "cell", command.end_of_call(0))
    assert len(calls) == 2
    reasons += ["interrupted"]
    with pytest.raises(KeyboardInterrupt):
        command.train(TaskConfig(), tmp_path / "cell", command.end_of_call(0))
