"""``jaxformer score``: pairs from files and from standard input."""

import io
import json
import sys

import pytest

from jaxformer.cli import score
from jaxformer.cli.main import main
from jaxformer.errors import DataError
from jaxformer.tasks import rundir
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.search import Scored
from jaxformer.tasks.translation import TranslationConfig


class Echo:
    def score(self, sources, targets, *, first, warn):
        for number, source in enumerate(sources, first):
            if source == "too long":
                warn(f"sentence {number}")
        return [
            Scored(tuple(target), (-float(len(source)),) * 2) for source, target in zip(sources, targets, strict=True)
        ]


@pytest.fixture(autouse=True)
def _echo(monkeypatch):
    monkeypatch.setattr(score, "configured", lambda options, settings: TranslationConfig())
    monkeypatch.setattr(score, "load_ensemble", lambda options, config: Echo())


def test_pairs_of_two_files(tmp_path, capsys):
    (tmp_path / "a").write_text("one\nlonger\n")
    (tmp_path / "b").write_text("un\nde\n")
    files = ["--source", str(tmp_path / "a"), "--target", str(tmp_path / "b")]
    assert score.main(["run", *files]) == 0
    assert capsys.readouterr().out == "-6.0000\t-3.0000\n-12.0000\t-6.0000\n"
    assert score.main(["run", *files, "--json", "--out", str(tmp_path / "out")]) == 0
    first, _ = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert first == {"number": 1, "log_prob": -6.0, "mean": -3.0, "tokens": ["u", "n"], "token_log_probs": [-3.0, -3.0]}
    (tmp_path / "b").write_text("un\n")
    with pytest.raises(DataError, match=r"a has 2 lines, but .*b has 1"):
        score.main(["run", *files])


def test_pairs_of_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\tun\nno tab\n")))
    with pytest.raises(DataError, match="line 2: a source and a target with a tab between them, got 1"):
        score.main(["run"])
    assert capsys.readouterr().out == "-6.0000\t-3.0000\n"


def test_line_numbers_continue_across_batches(monkeypatch, capsys):
    """In messages about a line, too."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\tb\n" * 69 + b"too long\tb\n")))
    assert score.main(["run", "--json"]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line)["number"] for line in printed.out.splitlines()] == list(range(1, 71))
    assert printed.err == "sentence 70\n"


def test_a_language_model_has_no_target(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()
    rundir.claim(tmp_path / "run", "language_model", LanguageModelingConfig(), ())
    assert main(["score", str(tmp_path / "run"), "--source", "a", "--target", "b"]) == 2
    assert "a language model has no --target" in capsys.readouterr().err
