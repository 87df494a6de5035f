"""The blocks of docs/extend.md: each is a file that runs as it stands, and prints what its last comment says."""

import pathlib
import re
import runpy
import sys

import jax
import pytest

from jaxformer.tasks import registry
from tests.selection import first

PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "extend.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PARTS = ["Attention", "Mask", "Bias", "Position scheme", "Norm", "Loss", "Model", "Task", "Decoding rule"]
SCREEN = 60
"""The number of lines that a screen shows."""


@pytest.mark.parametrize("name", first(PARTS, "Attention", "Mask", "Norm", "Decoding rule"))
def test_a_block_runs_as_a_file(name, tmp_path, capsys, monkeypatch):
    """As for a user, with the defaults of JAX; in this process, whose imports are done."""
    path = tmp_path / "own.py"
    path.write_text(BLOCKS[name], encoding="utf-8")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(registry, "TASKS", dict(registry.TASKS))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out == BLOCKS[name].splitlines()[-1].removeprefix("# ") + "\n"


def test_each_part_has_one_block_that_fits_on_a_screen():
    assert list(BLOCKS) == PARTS
    assert PAGE.count("```python") == len(PARTS)
    assert {name: block.count("\n") for name, block in BLOCKS.items() if block.count("\n") > SCREEN} == {}


def test_the_files_to_read_exist():
    root = pathlib.Path(__file__).parents[1]
    named = re.findall(r"`((?:jaxformer|tests|experiments)/[\w/]+(?:\.py)?)`", PAGE)
    assert len(named) > len(PARTS)
    assert [name for name in named if not (root / name).exists()] == []
