"""The targets of the Makefile that make the environment, with a Python and a pip that only keep a log."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

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


def found(folder, *minors):
    """Calls find_python.sh where PATH has these versions of Python, in truth this one; a single one is named."""
    folder.mkdir()
    for minor in minors:
        code = f"import sys; sys.version_info = (3, {minor}, 1, 'final', 0); exec(sys.argv[1])"
        (folder / f"python3.{minor}").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$2"\n')
        (folder / f"python3.{minor}").chmod(0o755)
    env = {"PATH": f"{folder}:/bin", "PYENV_ROOT": str(folder)}
    named = [str(folder / f"python3.{minors[0]}")] if len(minors) == 1 else []
    script = ["/bin/sh", str(ROOT / "launch" / "find_python.sh"), *named]
    return subprocess.run(script, env=env, capture_output=True, text=True, timeout=60)


def test_the_newest_supported_python_is_found(tmp_path):
    """It was refused: the first command of a newcomer to a current Ubuntu or Fedora failed."""
    assert found(tmp_path / "all", 11, 13, 14).stdout == f"{tmp_path}/all/python3.14\n"
    assert found(tmp_path / "newer", 12, 15).stdout == f"{tmp_path}/newer/python3.12\n"


def test_supported_pythons_are_the_same_everywhere(tmp_path):
    """In the package's metadata, in the script that looks for one, in its messages and in the documents."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least, above = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups())
    kind = "Programming Language :: Python :: 3."
    listed = [name.removeprefix(kind) for name in project["classifiers"] if name.startswith(kind)]
    assert listed == [str(minor) for minor in range(least, above)]
    for minor in (least - 1, least, above - 1, above):
        done = found(tmp_path / str(minor), minor)
        assert (done.returncode == 0) is (least <= minor < above), minor
    said = f"Python 3.{least} to 3.{above - 1}"
    assert done.stderr.startswith(f"PYTHON must be {said}, got ")
    for name in ("README.md", "Makefile", "CHANGELOG.md", "launch/find_python.sh"):
        assert said in (ROOT / name).read_text(encoding="utf-8"), name
