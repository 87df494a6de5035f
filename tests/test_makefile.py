"""The targets of the Makefile that make the environment, with a Python and a pip that only keep a log."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PYTHON = """#!/bin/sh
case "$*" in
--version) echo "Python 3.12.0" ;;
"-m venv"*) echo venv >>"$LOG"; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
"-m pip"*) echo pip >>"$LOG"; sleep 0.05; echo installed >>"$LOG" ;;
esac
"""


@pytest.mark.skipif(not shutil.which("make") or not shutil.which("flock"), reason="needs make and flock")
def test_two_calls_at_once_make_one_environment(tmp_path):
    """The second one cleared the folder into which the first one was installing. The path has a space."""
    folder, log = tmp_path / "a folder", tmp_path / "log"
    (folder / "launch").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "pyproject.toml").touch()
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    (folder / "launch" / "find_python.sh").write_text('sleep 0.05; echo "$PWD/python"\n')
    env = {name: value for name, value in os.environ.items() if "MAKE" not in name}  # `make test` sets some
    words = {"cwd": folder, "env": env | {"LOG": str(log)}, "stdout": subprocess.PIPE, "text": True}
    calls = [subprocess.Popen(["make", "setup"], **words) for _ in range(2)]
    said = [call.communicate(timeout=30)[0] for call in calls]
    assert [call.returncode for call in calls] == [0, 0]
    assert all(text.endswith(".venv: Python 3.12.0\n") for text in said)
    assert log.read_text().split() == ["venv", "pip", "installed"]
