"""``jaxformer generate``: prompts as arguments and from standard input."""

import functools
import io
import sys

import pytest

from jaxformer.cli import generate
from jaxformer.tasks.language_model import DecodeConfig, TextGenerator
from jaxformer.training import progress


class Echo(TextGenerator):
    decode = DecodeConfig(max_tokens=40)

    def __init__(self):
        """A generator without a model."""

    def generate(self, prompts, *, progress=None):
        progress(30)
        return [f"{prompt} and so on" for prompt in prompts]


@pytest.fixture(autouse=True)
def _echo(monkeypatch):
    monkeypatch.setattr(generate, "configured", lambda options, settings: None)
    monkeypatch.setattr(generate, "load", lambda options, config, command: Echo())


def test_prompts_are_arguments(capsys):
    assert generate.main(["run", "To be", "--decode.temperature", "0", "Or not"]) == 0
    assert capsys.readouterr().out == "To be and so on\nOr not and so on\n"


def test_prompts_are_lines_of_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("été\nb\n".encode())))
    assert generate.main(["run"]) == 0
    assert capsys.readouterr().out == "été and so on\nb and so on\n"


def test_long_texts_show_their_progress(capsys, monkeypatch):
    monkeypatch.setattr(progress, "Count", functools.partial(progress.Count, seconds=0.0))
    assert generate.main(["run", "To be"]) == 0
    assert capsys.readouterr().err.startswith("30/40 tokens, ")
