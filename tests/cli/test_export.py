"""``jaxformer export``: the arguments of the export, and the printed lines."""

import pathlib

from jaxformer.cli import main
from jaxformer.errors import ConfigError
from jaxformer.tasks import pretrained


def test_the_arguments_of_the_export(capsys, monkeypatch):
    asked = []

    def export(*given, say, **options):
        asked.append((*given, options))
        say("no counterpart")
        return "marian"

    monkeypatch.setattr(pretrained, "export", export)
    assert main.main(["export", "run", "--out", "folder", "--checkpoint", "average", "--family", "marian"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "folder is now a Hugging Face folder of model_type marian\n"
    assert "no counterpart" in printed.err
    options = {"checkpoint": "average", "family": "marian", "mesh": ""}
    assert asked == [(pathlib.Path("run"), pathlib.Path("folder"), options)]


def test_errors_have_one_line(capsys, monkeypatch):
    def refuse(*given, **options):
        raise ConfigError("no family")

    monkeypatch.setattr(pretrained, "export", refuse)
    assert main.main(["export", "run", "--out", "folder"]) == 2
    assert capsys.readouterr().err == "jaxformer export: no family\n"
    assert main.main(["export", "run"]) == 2
