"""``jaxformer configs``: one line for each configuration."""

import importlib
import os

import pytest

from jaxformer.cli import configs
from jaxformer.tasks import registry


def test_every_configuration_has_a_line(capsys, monkeypatch, tmp_path):
    """The built-in ones, and those below ./experiments, whose code does not run."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.py").write_text("raise SystemExit(3)\ndef small():\n    'A small one.'\n")
    monkeypatch.chdir(tmp_path)
    assert configs.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    names, summaries = zip(*(line.split(maxsplit=1) for line in lines), strict=True)
    assert names == (*registry.BUILTIN, "mine:small")
    assert summaries[-1] == "A small one."
    assert len({line.index(summary) for line, summary in zip(lines, summaries, strict=True)}) == 1


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_the_summary_is_the_first_line_of_the_docstring(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert configs.main([]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[0] == name]
    docstring = getattr(importlib.import_module(registry.BUILTIN[name]), name.rpartition(":")[2]).__doc__
    assert line.removeprefix(name).strip() == docstring.splitlines()[0]


def test_a_named_pipe_is_not_a_configuration(capsys, monkeypatch, tmp_path):
    """The pipe has no writer, so a reader would wait forever."""
    (tmp_path / "experiments" / "folder.py").mkdir(parents=True)
    os.mkfifo(tmp_path / "experiments" / "pipe.py")
    monkeypatch.chdir(tmp_path)
    assert configs.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(registry.BUILTIN)
