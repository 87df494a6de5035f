"""``jaxformer classify``: texts as arguments, from a file and from standard input."""

import io
import sys

import pytest

from jaxformer.cli import classify
from jaxformer.tasks.classification import Classified, TextClassifier


class Fixed(TextClassifier):
    def __init__(self):
        """A classifier without a model."""

    def classify(self, texts):
        words = (("a", 0.1), *((text, 0.25) for text in texts), ("z", 0.5))
        return [Classified("good", {"bad": 0.125, "good": 0.875}, words) for _ in texts]


LINE = "good\tgood 87.5%, bad 12.5%\tz 50.0%, {} 25.0%, a 10.0%\n"


@pytest.fixture(autouse=True)
def _fixed(monkeypatch):
    monkeypatch.setattr(classify, "configured", lambda options, settings: None)
    monkeypatch.setattr(classify, "load", lambda options, config, command: Fixed())


def test_texts_are_arguments(capsys):
    assert classify.main(["run", "fine", "--checkpoint", "last"]) == 0
    assert capsys.readouterr().out == LINE.format("fine")
    assert classify.main(["run", "fine", "--words", "1"]) == 0
    assert capsys.readouterr().out == "good\tgood 87.5%, bad 12.5%\tz 50.0%\n"


def test_texts_are_lines_of_a_file(capsys, tmp_path):
    (tmp_path / "texts").write_text("fine\n")
    assert classify.main(["run", "--file", str(tmp_path / "texts"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out").read_text() == LINE.format("fine")


def test_texts_are_lines_of_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("été\nb\n".encode())))
    assert classify.main(["run"]) == 0
    assert capsys.readouterr().out == LINE.format("été") + LINE.format("b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["fine", "--file", "x"], "give texts or --file, not both"), (["--words", "-1"], "--words must be at least 0")],
)
def test_arguments_that_contradict(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        classify.main(["run", *arguments])
    assert message in capsys.readouterr().err
