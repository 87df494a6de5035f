"""``jaxformer fill``: texts as arguments, from a file and from standard input."""

import io
import json
import re
import sys

import pytest

from jaxformer.cli import fill
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks.masked_language_model import MaskedLanguageModelingConfig
from jaxformer.tasks.masked_language_model.task import MaskedPredictor


class Fixed(MaskedPredictor):
    def __init__(self):
        """A predictor without a model."""

    def fill(self, text, *, top_k=5):
        if not (masks := text.count("[MASK]")):
            raise DataError("the text has no [MASK]")
        return [[("▁cat", 0.75), ("▁dog", 0.125)][:top_k]] * masks


LINE = "▁cat 75.0%, ▁dog 12.5%"


@pytest.fixture(autouse=True)
def _fixed(monkeypatch):
    monkeypatch.setattr(fill, "configured", lambda options, settings: MaskedLanguageModelingConfig())
    monkeypatch.setattr(fill, "load", lambda options, config: Fixed())


def test_texts_are_arguments(capsys):
    assert fill.main(["run", "a [MASK] [MASK]", "[MASK]"]) == 0
    assert capsys.readouterr().out == f"{LINE}\t{LINE}\n{LINE}\n"
    assert fill.main(["run", "a [MASK]", "--top-k", "1"]) == 0
    assert capsys.readouterr().out == "▁cat 75.0%\n"


def test_json_keeps_tokens_that_look_alike(capsys, monkeypatch):
    """Tokens that look alike, such as bytes of one character, are all listed."""
    monkeypatch.setattr(Fixed, "fill", lambda self, text, top_k: [[("▁cat", 0.75), ("\ufffd", 0.125), ("\ufffd", 0.1)]])
    assert fill.main(["run", "[MASK]\u2028", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    pairs = ("▁cat", 0.75), ("\ufffd", 0.125), ("\ufffd", 0.1)
    masks = [[{"token": token, "probability": share} for token, share in pairs]]
    assert json.loads(line) == {"text": "[MASK]\u2028", "masks": masks}


def test_tabs_and_line_breaks_are_escaped(capsys, monkeypatch):
    """They are tokens of a character model."""
    monkeypatch.setattr(Fixed, "fill", lambda self, text, top_k: [[("\n", 0.5), ("\t", 0.25)]])
    assert fill.main(["run", "[MASK]"]) == 0
    assert capsys.readouterr().out == "\\n 50.0%, \\t 25.0%\n"


def test_a_file_and_standard_input_name_the_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "texts").write_text("[MASK]\nnone\n")
    with pytest.raises(DataError, match=r"texts, line 2: the text has no \[MASK\]"):
        fill.main(["run", "--file", str(tmp_path / "texts")])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[MASK]\n[MASK]\nnone\n")))
    with pytest.raises(DataError, match=r"standard input, line 3: the text has no \[MASK\]"):
        fill.main(["run"])
    assert capsys.readouterr().out == f"{LINE}\n" * 3  # the lines before it


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["[MASK]", "--file", "x"], "give texts or --file, not both"), (["--top-k", "0"], "--top-k must be at least 1")],
)
def test_arguments_that_contradict(arguments, message, capsys):
    with pytest.raises(ConfigError, match=re.escape(message)):
        fill.main(["run", *arguments])
