"""Benchmarks check their options and the file of results before they measure, and end with one line."""

import argparse
import importlib
import json
import pathlib
import signal
import subprocess
import sys

import pytest

import benchmarks
from benchmarks import command, decode, startup
from experiments.program import Terminated
from jaxformer.cli.arguments import override
from jaxformer.errors import JaxformerError
from jaxformer.tasks.registry import resolve

NAMES = "attention convolution data_throughput decode positions recurrent scaling seeds startup train_step translate"

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("name", [*NAMES.split(), "first_losses", "vision"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, name):
    out = tmp_path / "file" / "results.json"
    (tmp_path / "file").touch()
    more = ["run", "--source", "test.en"] if name == "translate" else []
    assert importlib.import_module(f"benchmarks.{name}").main([*more, "--out", str(out)]) == 1
    assert capsys.readouterr() == ("", f"error: [Errno 20] Not a directory: '{out}'\n")


REFUSED = [
    ("data_throughput", "--config language_model", "--config must be of the task translation, got language_model"),
    (
        "first_losses",
        "--compare {}/other.json",
        "{}/other.json must be a file that benchmarks.first_losses has written",
    ),
    ("accelerator.__main__", "--part 1", "--out must be a folder"),
    ("accelerator.__main__", "--part 1 --out {} --cases x", "--cases must be cases of part 1, got x"),
    ("accelerator.__main__", "--part 1 --out {} --wheels {}", "--wheels must be a folder with wheels"),
    ("accelerator.__main__", "--part 1 --out {} --data {}/none", "--data must be a folder"),
]


@pytest.mark.parametrize(("name", "words", "message"), REFUSED)
def test_wrong_options_are_refused_in_one_line(tmp_path, capsys, name, words, message):
    (tmp_path / "other.json").write_text("{}")
    main = importlib.import_module(f"benchmarks.{name}").main
    assert main(words.replace("{}", str(tmp_path)).split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: " + message.replace("{}", str(tmp_path)))
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_signal_is_one_line(capsys, error, code):
    def run(_):
        raise error

    assert command.exit_code(run, argparse.Namespace(out=None)) == code
    assert capsys.readouterr() == ("", "interrupted\n")


def test_results_are_written_whole_with_their_circumstances(tmp_path):
    path = tmp_path / "new" / "results.json"
    command.write(path, {"cases": [1.5]})
    found = json.loads(path.read_text())
    assert {"date", "command", "commit", "processor", "jax", "load"} < set(found)
    assert found["cases"] == [1.5]
    assert list(path.parent.iterdir()) == [path]
    command.write(None, {"cases": [1.5]})


def test_shapes_are_checked(capsys):
    parser = command.parser("attention", None)
    command.add_shapes(parser, "BxTxNxH", ["2x128x8x64"])
    assert parser.parse_args([]).shapes == [(2, 128, 8, 64)]
    assert parser.parse_args(["--shapes", "1x2x3x4", "5x6x7x8"]).shapes == [(1, 2, 3, 4), (5, 6, 7, 8)]
    for text, reason in (("2x128", "it must be BxTxNxH, got 2x128"), ("2x0x8x64", "at least 1, got 0")):
        with pytest.raises(SystemExit):
            parser.parse_args(["--shapes", text])
        assert reason in capsys.readouterr().err


def test_an_interpreter_is_that_of_a_side(capsys):
    assert decode.interpreter("Hugging Face=/venv/bin/python") == ("Hugging Face", "/venv/bin/python")
    for text in ("/venv/bin/python", "HuggingFace=/venv/bin/python", "Hugging Face="):
        with pytest.raises(argparse.ArgumentTypeError, match="it must be SIDE=PATH with a side of jaxformer, CTrans"):
            decode.interpreter(text)


@pytest.mark.parametrize("python", ["CTranslate2=/a", "CTranslate2 int8=/a"])
def test_an_interpreter_is_used_for_its_side(monkeypatch, python):
    """That of CTranslate2 counts for its 8-bit side, too, unless this one has its own."""
    used = {}

    class Side:
        def __init__(self, name, module, spec, *, python):
            self.name, used[name] = name, python

        def close(self):
            row = dict.fromkeys(("seconds", "fastest", "processor", "first", "peak", "memory", "versions"), 1.0)
            return row | {"result": [[3]]}

    monkeypatch.setattr(decode, "Side", Side)
    given = [decode.interpreter(python)]
    sides = ["jaxformer", "CTranslate2", "CTranslate2 int8"]
    options = argparse.Namespace(python=given, sides=sides, threads=1, rounds=0)
    decode.measure("base-8k", {"batch_size": 1, "beam_size": 1}, options)
    assert (used["CTranslate2 int8"], used["jaxformer"]) == ("/a", sys.executable)
    assert used["CTranslate2"] == ("/a" if python == "CTranslate2=/a" else sys.executable)


def test_no_side_has_more_threads_than_cores(monkeypatch, capsys):
    """JAX takes the cores it is given; a peer with more threads than these would be slowed down."""
    monkeypatch.setattr(command.os, "sched_getaffinity", lambda process: {1})
    monkeypatch.setattr(command.os, "cpu_count", lambda: 8)
    parser = command.parser("decode", None)
    command.add_threads(parser)
    assert parser.parse_args([]).threads == parser.parse_args(["--threads", "1"]).threads == 1
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--threads", "2"])
    assert "it must be at most the number of cores here, 1, got 2" in capsys.readouterr().err


def test_rounds_are_counted(capsys):
    assert list(command.rounds(3)) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")  # not a terminal


@pytest.mark.parametrize(("program", "handler"), [("-m", signal.SIG_DFL), ("pytest", signal.default_int_handler)])
def test_ctrl_c_during_the_imports_of_a_program_has_no_traceback(monkeypatch, program, handler):
    """Python names a program "-m" until it has found its file; other importers keep their handler."""
    monkeypatch.setattr(sys, "argv", [program])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        importlib.reload(benchmarks)
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_each_program_has_its_handlers_back_after_the_imports():
    programs = {}
    for package in ("benchmarks", "experiments"):
        for file in (ROOT / package).rglob("*.py"):
            _, main, end = file.read_text().partition('if __name__ == "__main__":')
            if main:
                programs[str(file.relative_to(ROOT))] = "command.script(main)" in end or "raise_signals()" in end
    assert [name for name, restored in programs.items() if not restored] == ["benchmarks/worker.py"]  # it ends at once


class Training:
    """A training process with these lines on standard error."""

    lines: tuple[str, ...] = ("step 1/1,000: loss 7.6\n",)
    words: tuple[str, ...] = ()

    def __init__(self, words, **options):
        Training.words, self.stderr = tuple(words), iter(self.lines)

    def terminate(self):
        pass

    communicate = kill = terminate


def test_the_training_that_is_started_has_valid_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(startup.subprocess, "Popen", Training)
    begin = lambda: startup.first_step("translation", startup.SIZE.split(), tmp_path, tmp_path, resumed=False)
    assert begin() >= 0
    settings = Training.words[Training.words.index(str(tmp_path)) + 1 :]
    config = override(resolve("translation"), settings)
    assert config.train.steps == 1000
    monkeypatch.setattr(Training, "lines", ("starting\n", "jaxformer train: wrong\n"))
    with pytest.raises(JaxformerError, match=r"the process ended before its first step: jaxformer train: wrong$"):
        begin()


def test_a_side_without_its_library_says_so_in_one_line():
    words = [sys.executable, "-m", "benchmarks.worker", "benchmarks.no_side", "{}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    line = f"benchmarks.no_side: No module named 'benchmarks.no_side' ({sys.executable})\n"
    assert (done.returncode, done.stderr) == (1, line)
