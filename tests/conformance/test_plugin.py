"""One test for each property, a reason for each that is not offered, and one line for a wrong name."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def pytest_of(folder, *words):
    command = [sys.executable, "-m", "pytest", "-p", "jaxformer.conformance.plugin", "-p", "no:cacheprovider", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_one_test_for_each_property(tmp_path):
    """In a folder with a test of its own, which is not run."""
    (tmp_path / "test_other.py").write_text("def test_other(): assert False")
    done = pytest_of(tmp_path, "--attention", "tests.conformance.wrong:ADAPTER", "-rs")
    assert done.returncode == 1, done.stderr
    assert "= 2 failed, 19 passed, 12 skipped" in done.stdout, done.stdout
    assert "_ empty rows _" in done.stdout
    assert "a query without keys gets NaN, not zeros" in done.stdout
    assert "print(numpy_attend(query, key, value, mask=mask))" in done.stdout
    assert "not offered: it takes no bias" in done.stdout
    assert "test_other" not in done.stdout


@pytest.mark.full  # `test_check` has the messages
def test_a_wrong_name_is_one_line(tmp_path):
    done = pytest_of(tmp_path, "--attention", "tests.conformance.wrong:numpy_atend")
    assert done.returncode == 2
    wrong = "tests.conformance.wrong has no 'numpy_atend'; did you mean 'numpy_attend'?"
    assert done.stderr.strip().splitlines() == [f"Exit: {wrong}"]
