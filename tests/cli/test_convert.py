"""``jaxformer convert``: the arguments of the conversion, and the printed lines."""

import pathlib

import pytest

from jaxformer.cli import main
from jaxformer.errors import DataError
from jaxformer.tasks import pretrained
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.masked_language_model import MaskedLanguageModelingConfig


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (LanguageModelingConfig(), "run is a run of language_model now; try: jaxformer generate run TEXT"),
        (MaskedLanguageModelingConfig(), "run is a run of masked_language_model now; try: jaxformer fill run TEXT"),
    ],
)
def test_the_arguments_of_the_conversion(capsys, monkeypatch, config, line):
    asked = []
    monkeypatch.setattr(pretrained, "convert", lambda *given, length, say: asked.append((*given, length)) or config)
    assert main.main(["convert", "folder", "--out", "run", "--length", "7"]) == 0
    assert capsys.readouterr().out == f"{line}\n"
    assert asked == [(pathlib.Path("folder"), pathlib.Path("run"), 7)]


def test_the_printed_command_can_be_pasted(capsys, monkeypatch):
    monkeypatch.setattr(pretrained, "convert", lambda *given, length, say: LanguageModelingConfig())
    assert main.main(["convert", "folder", "--out", "my run"]) == 0
    assert capsys.readouterr().out.endswith("try: jaxformer generate 'my run' TEXT\n")


def test_errors_have_one_line(capsys, monkeypatch):
    def refuse(folder, out, length, say):
        raise DataError("no model")

    monkeypatch.setattr(pretrained, "convert", refuse)
    assert main.main(["convert", "folder", "--out", "run"]) == 2
    assert capsys.readouterr().err == "jaxformer convert: no model\n"
