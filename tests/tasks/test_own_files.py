"""Files that a user names: what runs is what was read."""

import importlib.util
import os
import py_compile

import pytest

from jaxformer.errors import ConfigError
from jaxformer.tasks import own_files


def test_a_compiled_file_is_not_run(tmp_path):
    """It may hold anything, and Python takes it for the file if only the time and the size agree."""
    path = tmp_path / "mine.py"
    path.write_text("x = 2\n")
    compiled = importlib.util.cache_from_source(str(path))
    py_compile.compile(str(path), compiled)
    about = path.stat()
    path.write_text("x = 1\n")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    module = own_files.run(path, own_files.read(path, what="file"), name="jaxformer_test_mine")
    assert (module.x, module.__file__) == (1, str(path))


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"no attention file .*nothing\.py"):
        own_files.read(tmp_path / "nothing.py", what="attention file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nimport nothing_of_this_name", "mine.py, line 2: ModuleNotFoundError: No module named 'nothing_of"),
        ("x = 1\nx = 1 +\n", "mine.py, line 2: invalid syntax"),
        ("def f():\n    1 / 0\nf()", "mine.py, line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "mine.py, line 1 ends the process"),
    ],
)
def test_errors_are_one_line_with_the_place(tmp_path, text, message):
    with pytest.raises((Exception, SystemExit)) as raised:
        own_files.run(tmp_path / "mine.py", text.encode(), name="jaxformer_test_mine")
    explained = own_files.explained(raised.value, tmp_path / "mine.py")
    assert message in explained
    assert "\n" not in explained
