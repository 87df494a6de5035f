"""``classify``, ``fill`` and ``score``: their inputs and the printed lines, without a model."""

import io
import json
import sys

import numpy as np
import pytest

from jaxformer.cli import prediction
from jaxformer.cli.main import main
from jaxformer.cli.prediction import classify, fill, score, tag
from jaxformer.errors import DataError
from jaxformer.inspection import plots
from jaxformer.tasks.classification import ClassificationConfig, Classified, TextClassifier
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.masked_language_model import MaskedLanguageModelingConfig
from jaxformer.tasks.masked_language_model.task import MaskedPredictor
from jaxformer.tasks.search import Scored
from jaxformer.tasks.tagging import Tagged, Tagger, TaggingConfig
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.tasks.vision import ClassifiedImage, ImageClassifier, VisionConfig

sizes: list[int] = []
"""The numbers of texts that are classified at once."""


class Classifier(TextClassifier):
    def __init__(self):
        """A classifier without a model."""

    def classify(self, texts, *, first=1, warn=lambda message: None):
        sizes.append(len(texts))
        for number, text in enumerate(texts, first):
            if text == "long":
                warn(f"text {number} is cut")
        words = [(("a", 0.1), (text, 0.25), ("z", 0.5)) for text in texts]
        return [Classified("good", {"bad": 0.125, "good": 0.875}, own) for own in words]


class Seen(ImageClassifier):
    def __init__(self):
        """A classifier without a model."""

    def classify(self, paths):
        image, maps = np.zeros((4, 4, 3), np.uint8), {"grid": np.eye(2)}
        return [ClassifiedImage("cat", {"dog": 0.25, "cat": 0.75}, image, maps) for _ in paths]


class Filler(MaskedPredictor):
    filled = ("▁cat", 0.75), ("▁dog", 0.125)

    def __init__(self):
        """A predictor without a model."""

    def fill(self, text, *, top_k=5):
        if not (masks := text.count("[MASK]")):
            raise DataError("the text has no [MASK]")
        return [list(self.filled[:top_k])] * masks


class Scorer:
    def score(self, sources, targets, *, first, warn):
        for number, source in enumerate(sources, first):
            if source == "too long":
                warn(f"sentence {number}")
        pairs = zip(sources, targets, strict=True)
        return [Scored(tuple(target), (-float(len(source)),) * 2) for source, target in pairs]


@pytest.fixture(autouse=True)
def _models(monkeypatch):
    """A model for each command; `classify` has one of texts."""
    models = {
        "classify": (ClassificationConfig(), Classifier),
        "fill": (MaskedLanguageModelingConfig(), Filler),
        "score": (TranslationConfig(), Scorer),
    }
    monkeypatch.setattr(prediction, "configured", lambda options, settings: models[options.command()][0])
    for name in ("load", "load_ensemble"):
        monkeypatch.setattr(prediction, name, lambda options, config: models[options.command()][1]())
    sizes.clear()


@pytest.fixture
def _images(monkeypatch):
    monkeypatch.setattr(prediction, "configured", lambda options, settings: VisionConfig())
    monkeypatch.setattr(prediction, "load", lambda options, config: Seen())


def give(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


LINE = "good\tgood 87.5%, bad 12.5%\tz 50.0%, {} 25.0%, a 10.0%\n"
FILLED = "▁cat 75.0%, ▁dog 12.5%"


@pytest.mark.parametrize(
    ("command", "words", "printed"),
    [
        (classify, ["fine", "--checkpoint", "last"], LINE.format("fine")),
        (classify, ["fine", "--words", "1"], "good\tgood 87.5%, bad 12.5%\tz 50.0%\n"),
        (fill, ["a [MASK] [MASK]", "[MASK]"], f"{FILLED}\t{FILLED}\n{FILLED}\n"),
        (fill, ["a [MASK]", "--top-k", "1"], "▁cat 75.0%\n"),
    ],
)
def test_texts_are_arguments(command, words, printed, capsys):
    assert command(["run", *words]) == 0
    assert capsys.readouterr().out == printed


def test_json_has_everything_in_one_line(capsys, monkeypatch):
    """A separator of lines inside a text is escaped; tokens that look alike, such as bytes of one character, are
    all listed."""
    monkeypatch.setattr(Filler, "filled", (("▁cat", 0.75), ("\ufffd", 0.125), ("\ufffd", 0.1)))
    assert classify(["run", "é\u2028", "--json"]) == 0
    assert fill(["run", "[MASK]\u2028", "--json"]) == 0
    classes, masks = map(json.loads, capsys.readouterr().out.splitlines())
    assert classes == {
        "text": "é\u2028",
        "label": "good",
        "probabilities": {"bad": 0.125, "good": 0.875},
        "words": [["a", 0.1], ["é\u2028", 0.25], ["z", 0.5]],
    }
    listed = [[{"token": token, "probability": share} for token, share in Filler.filled]]
    assert masks == {"text": "[MASK]\u2028", "masks": listed}


def test_tabs_and_line_breaks_are_escaped(capsys, monkeypatch):
    """They are tokens of a character model."""
    monkeypatch.setattr(Filler, "filled", (("\n", 0.5), ("\t", 0.25)))
    assert fill(["run", "[MASK]"]) == 0
    assert capsys.readouterr().out == "\\n 50.0%, \\t 25.0%\n"


def test_truncated_texts_are_reported_with_their_line_numbers(capsys, monkeypatch, tmp_path):
    """On standard error, so that the output has one line for each text."""
    (tmp_path / "texts").write_text("fine\nlong\n")
    give(monkeypatch, "fine\nlong\n")
    assert classify(["run"]) == 0
    said = capsys.readouterr()
    assert (said.out.count("\n"), said.err) == (2, "text 2 is cut\n")
    assert classify(["run", "--file", str(tmp_path / "texts"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr() == ("", "text 2 is cut\n")
    assert (tmp_path / "out").read_text() == LINE.format("fine") + LINE.format("long")


def test_a_file_and_standard_input_name_the_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "texts").write_text("[MASK]\nnone\n")
    with pytest.raises(DataError, match=r"texts, line 2: the text has no \[MASK\]"):
        fill(["run", "--file", str(tmp_path / "texts")])
    give(monkeypatch, "[MASK]\n[MASK]\nnone\n")
    with pytest.raises(DataError, match=r"standard input, line 3: the text has no \[MASK\]"):
        fill(["run"])
    assert capsys.readouterr().out == f"{FILLED}\n" * 3  # the lines before it


@pytest.mark.usefixtures("_images")
def test_images_by_name(capsys, tmp_path, monkeypatch):
    line, drawn, draw = "cat\tcat 75.0%, dog 25.0%\t{}\n", [], plots.image_maps
    monkeypatch.setattr(plots, "image_maps", lambda *own, titles: drawn.extend(titles) or draw(*own, titles=titles))
    assert classify(["run", "a.png", "in/b.png", "--picture", str(tmp_path / "maps.png")]) == 0
    assert capsys.readouterr().out == line.format("a.png") + line.format("in/b.png")
    assert (tmp_path / "maps.png").exists()
    assert drawn == ["a.png\ncat 75%", "b.png\ncat 75%"]  # of a long title, each line is cut by itself
    assert classify(["run", "a\n.png", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == {"image": "a\n.png", "label": "cat", "probabilities": {"dog": 0.25, "cat": 0.75}}
    (tmp_path / "c.png").touch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names").write_text("c.png\n")
    assert classify(["run", "--file", str(tmp_path / "names"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == line.format("c.png")
    give(monkeypatch, "d.png\n")
    assert classify(["run"]) == 0
    assert capsys.readouterr().out == line.format("d.png")
    with pytest.raises(SystemExit, match="0"):
        classify(["--help"])
    assert f"first {prediction.MOST} images" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("_images")
@pytest.mark.parametrize("name", ["gone.png", ""])
def test_a_missing_image_is_reported_with_its_line(tmp_path, name):
    (tmp_path / "names").write_text(f"{tmp_path}\n{name}\n")
    with pytest.raises(DataError, match=f"names, line 2: there is no file '{name}'"):
        classify(["run", "--file", str(tmp_path / "names")])


def test_pairs_of_two_files(tmp_path, capsys):
    (tmp_path / "a").write_text("one\nlonger\n")
    (tmp_path / "b").write_text("un\nde\n")
    files = ["--source", str(tmp_path / "a"), "--target", str(tmp_path / "b")]
    assert score(["run", *files]) == 0
    assert capsys.readouterr().out == "-6.0000\t-3.0000\n-12.0000\t-6.0000\n"
    assert score(["run", *files, "--json", "--out", str(tmp_path / "out")]) == 0
    first, _ = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert first == {"number": 1, "log_prob": -6.0, "mean": -3.0, "tokens": ["u", "n"], "token_log_probs": [-3.0, -3.0]}


def test_pairs_of_standard_input(monkeypatch, capsys):
    """Line numbers continue across batches, in messages about a line, too."""
    give(monkeypatch, "one\tun\nno tab\n")
    with pytest.raises(DataError, match="line 2: a source and a target with a tab between them, got 1"):
        score(["run"])
    assert capsys.readouterr().out == "-6.0000\t-3.0000\n"
    give(monkeypatch, "a\tb\n" * 69 + "too long\tb\n")
    assert score(["run", "--json"]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line)["number"] for line in printed.out.splitlines()] == list(range(1, 71))
    assert printed.err == "sentence 70\n"


def test_the_home_directory_of_a_file_to_read(tmp_path, monkeypatch, capsys):
    """A shell does not expand ~ in --file=~/texts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(prediction, "configured", lambda options, settings: LanguageModelingConfig())
    (tmp_path / "texts").touch()
    assert main(["score", "run", "--source=~/texts"]) == 0
    assert main(["score", "run", "--source=~/other"]) == 2
    assert f"cannot read {tmp_path / 'other'}" in capsys.readouterr().err


class Words(Tagger):
    def __init__(self):
        """A tagger without a model."""

    def tag(self, texts):
        words = [tuple(text.split()) if isinstance(text, str) else tuple(text) for text in texts]
        return [Tagged(each, ("B-PER",) + ("I-PER",) * (len(each) - 1), (0.5,) * len(each)) for each in words]


def test_words_with_their_labels(capsys, tmp_path, monkeypatch):
    """As rows of a table, or JSON with spans; an empty text is refused by its place."""
    monkeypatch.setattr(prediction, "configured", lambda args, settings: TaggingConfig())
    monkeypatch.setattr(prediction, "load", lambda args, config: Words())
    assert tag(["run", "Ada Lovelace"]) == 0
    assert capsys.readouterr().out == "Ada\tB-PER\t50.0%\nLovelace\tI-PER\t50.0%\n\n"
    assert tag(["run", "Ada Lovelace", "--json", "--split", "spaces"]) == 0
    spans = json.loads(capsys.readouterr().out)["spans"]
    assert spans == [{"label": "PER", "start": 0, "stop": 2, "text": "Ada Lovelace"}]
    (tmp_path / "texts").write_text("Ada\n\n")
    assert main(["tag", "run", "--file", str(tmp_path / "texts")]) == 2
    assert capsys.readouterr().err.endswith("texts, line 2: expected words, got an empty text\n")
