"""``jaxformer classify``: texts or images as arguments, from a file and from standard input."""

import io
import json
import re
import sys

import numpy as np
import pytest

from jaxformer.cli import classify
from jaxformer.errors import ConfigError, DataError
from jaxformer.inspection import plots
from jaxformer.tasks.classification import ClassificationConfig, Classified, TextClassifier
from jaxformer.tasks.vision import ClassifiedImage, ImageClassifier, VisionConfig


class Fixed(TextClassifier):
    def __init__(self):
        """A classifier without a model."""

    def classify(self, texts, *, first=1, warn=lambda message: None):
        for number, text in enumerate(texts, first):
            if text == "long":
                warn(f"text {number} is cut")
        words = [(("a", 0.1), (text, 0.25), ("z", 0.5)) for text in texts]
        return [Classified("good", {"bad": 0.125, "good": 0.875}, own) for own in words]


LINE = "good\tgood 87.5%, bad 12.5%\tz 50.0%, {} 25.0%, a 10.0%\n"


@pytest.fixture(autouse=True)
def _fixed(monkeypatch):
    monkeypatch.setattr(classify, "configured", lambda options, settings: ClassificationConfig())
    monkeypatch.setattr(classify, "load", lambda options, config: Fixed())


def test_texts_are_arguments(capsys):
    assert classify.main(["run", "fine", "--checkpoint", "last"]) == 0
    assert capsys.readouterr().out == LINE.format("fine")
    assert classify.main(["run", "fine", "--words", "1"]) == 0
    assert capsys.readouterr().out == "good\tgood 87.5%, bad 12.5%\tz 50.0%\n"


def test_json_has_all_probabilities_and_words(capsys):
    assert classify.main(["run", "é\u2028", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert len(out.splitlines()) == 1  # a separator of lines inside the text is escaped
    assert json.loads(out) == {
        "text": "é\u2028",
        "label": "good",
        "probabilities": {"bad": 0.125, "good": 0.875},
        "words": [["a", 0.1], ["é\u2028", 0.25], ["z", 0.5]],
    }


def test_texts_are_lines_of_a_file(capsys, tmp_path):
    (tmp_path / "texts").write_text("fine\n")
    assert classify.main(["run", "--file", str(tmp_path / "texts"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out").read_text() == LINE.format("fine")


def test_texts_are_lines_of_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("été\nb\n".encode())))
    assert classify.main(["run"]) == 0
    assert capsys.readouterr().out == LINE.format("été") + LINE.format("b")


def test_available_lines_are_classified_together(capsys, monkeypatch):
    """One at a time, 300 lines took 7.2 s instead of 2.6 s."""
    sizes = []
    classified = Fixed.classify
    given = lambda self, texts, **options: sizes.append(len(texts)) or classified(self, texts, **options)
    monkeypatch.setattr(Fixed, "classify", given)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n" * 70)))
    assert classify.main(["run"]) == 0
    assert capsys.readouterr().out.count("\n") == 70
    assert sizes == [32, 32, 6]


def test_truncated_texts_are_reported_with_their_line_numbers(capsys, monkeypatch, tmp_path):
    """On standard error, so that the output has one line for each text."""
    (tmp_path / "texts").write_text("fine\nlong\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"fine\nlong\n")))
    for arguments in (["--file", str(tmp_path / "texts")], []):
        assert classify.main(["run", *arguments]) == 0
        said = capsys.readouterr()
        assert said.out.count("\n") == 2
        assert said.err == "text 2 is cut\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fine", "--file", "x"], "give inputs or --file, not both"),
        (["--words", "-1"], "--words must be at least 0"),
        (["fine", "--json", "--words", "2"], "--json prints all words of a text, so --words has no effect"),
        (["fine", "--picture", "x.png"], "--picture is for a run of vision"),
    ],
)
def test_arguments_that_contradict(arguments, message, capsys):
    with pytest.raises(ConfigError, match=re.escape(message)):
        classify.main(["run", *arguments])


class Seen(ImageClassifier):
    def __init__(self):
        """A classifier without a model."""

    def classify(self, paths):
        image, maps = np.zeros((4, 4, 3), np.uint8), {"grid": np.eye(2)}
        return [ClassifiedImage("cat", {"dog": 0.25, "cat": 0.75}, image, maps) for _ in paths]


@pytest.fixture
def _images(monkeypatch):
    monkeypatch.setattr(classify, "configured", lambda options, settings: VisionConfig())
    monkeypatch.setattr(classify, "load", lambda options, config: Seen())


@pytest.mark.usefixtures("_images")
def test_images_by_name(capsys, tmp_path, monkeypatch):
    line, drawn, draw = "cat\tcat 75.0%, dog 25.0%\t{}\n", [], plots.image_maps
    monkeypatch.setattr(plots, "image_maps", lambda *own, titles: drawn.extend(titles) or draw(*own, titles=titles))
    assert classify.main(["run", "a.png", "in/b.png", "--picture", str(tmp_path / "maps.png")]) == 0
    assert capsys.readouterr().out == line.format("a.png") + line.format("in/b.png")
    assert (tmp_path / "maps.png").exists()
    assert drawn == ["a.png\ncat 75%", "b.png\ncat 75%"]  # of a long title, each line is cut by itself
    assert classify.main(["run", "a\n.png", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == {"image": "a\n.png", "label": "cat", "probabilities": {"dog": 0.25, "cat": 0.75}}
    (tmp_path / "c.png").touch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names").write_text("c.png\n")
    assert classify.main(["run", "--file", str(tmp_path / "names"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == line.format("c.png")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"d.png\n")))
    assert classify.main(["run"]) == 0
    assert capsys.readouterr().out == line.format("d.png")
    with pytest.raises(SystemExit, match="0"):
        classify.main(["--help"])
    assert f"first {classify.MOST} images" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("_images")
@pytest.mark.parametrize("name", ["gone.png", ""])
def test_a_missing_image_is_reported_with_its_line(tmp_path, name):
    (tmp_path / "names").write_text(f"{tmp_path}\n{name}\n")
    with pytest.raises(DataError, match=f"names, line 2: there is no file '{name}'"):
        classify.main(["run", "--file", str(tmp_path / "names")])


@pytest.mark.usefixtures("_images")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.png", "--words", "3"], "--words is for a run of classification"),
        (["--picture", "x.png"], "--picture needs the names of images, or --file"),
    ],
)
def test_options_for_the_other_kind_of_run_are_refused(arguments, message, capsys):
    with pytest.raises(ConfigError, match=re.escape(message)):
        classify.main(["run", *arguments])
