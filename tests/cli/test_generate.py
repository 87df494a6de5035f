"""``jaxformer generate``: prompts as arguments and from standard input."""

import functools
import io
import json
import math
import sys

import pytest

from jaxformer.cli import generate
from jaxformer.tasks.language_model import DecodeConfig, TextGenerator
from jaxformer.tasks.search import Candidate
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.training import progress


class Echo(TextGenerator):
    batch_size = 2
    decode = DecodeConfig(max_tokens=40)
    tokenizer = CharacterTokenizer(" ?adnos")

    def __init__(self):
        """A generator without a model."""
        object.__setattr__(self, "programs", set())

    def continuations(self, prompts, *, n_best, first, warn, progress):
        progress(30)
        text = lambda prompt, k: Candidate(f"{prompt} and so on{k or ''}", -1.5 - k, (4,), -1.5 - k, (-math.inf,))
        return [[text(prompt, k) for k in range(n_best)] for prompt in prompts]


@pytest.fixture(autouse=True)
def _echo(monkeypatch):
    monkeypatch.setattr(generate, "configured", lambda options, settings: None)
    monkeypatch.setattr(generate, "load_ensemble", lambda options, config: Echo())


def test_prompts_are_arguments(capsys):
    assert generate.main(["run", "To be", "--decode.temperature", "0", "Or not"]) == 0
    assert capsys.readouterr().out == "To be and so on\nOr not and so on\n"


def test_prompts_are_lines_of_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("été\nb\n".encode())))
    assert generate.main(["run"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "été and so on\nb and so on\n"
    assert printed.err.endswith("used 0 compiled search programs\n")


@pytest.mark.parametrize("place", ["arguments", "standard input"])
def test_prompts_share_programs(monkeypatch, place):
    """As many as the generator continues at once, with their numbers, on which draws depend."""
    calls, own = [], Echo.continuations

    def continuations(self, prompts, *, first, **options):
        calls.append((*prompts, first))
        return own(self, prompts, first=first, **options)

    monkeypatch.setattr(Echo, "continuations", continuations)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\nc\n")))
    assert generate.main(["run", *(["a", "b", "c"] if place == "arguments" else [])]) == 0
    assert calls == [("a", "b", 0), ("c", 2)]


def test_several_continuations(capsys):
    """With numbers and log-probabilities, or as JSON, in which a text with line breaks is one line."""
    assert generate.main(["run", "a\nb", "c", "--n-best", "2"]) == 0
    assert capsys.readouterr().out.startswith("1\t-1.5000\ta\nb and so on\n1\t-2.5000\t")
    assert generate.main(["run", "a\nb", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    scores = {"score": -1.5, "log_prob": -1.5, "tokens": ["\u2581"], "token_log_probs": [None]}
    assert json.loads(line)["continuations"] == [{"text": "a\nb and so on"} | scores]


def test_long_texts_show_their_progress(capsys, monkeypatch):
    monkeypatch.setattr(progress, "Count", functools.partial(progress.Count, seconds=0.0))
    assert generate.main(["run", "To be"]) == 0
    assert capsys.readouterr().err.startswith("30/40 tokens, ")
