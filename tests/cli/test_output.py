"""Output of commands: columns, and JSON that every reader accepts."""

import argparse
import json
import math
import os

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.cli.output import as_indented_json, as_json, put, save_besides, texts
from jaxformer.files import write_text
from jaxformer.tasks.search import Candidate
from jaxformer.tokenizers.characters import CharacterTokenizer

ONE = Candidate("ab", -1.5, (4, 5), -3.0, (-1.0, -2.0, -math.inf))


@pytest.mark.parametrize(
    ("n_best", "scores", "more", "line"),
    [
        (1, False, (), "ab"),
        (1, False, [{"links": "0-0"}], "ab\t0-0"),
        (1, True, (), "-1.5000\tab"),
        (2, False, (), "7\t-1.5000\tab"),
    ],
)
def test_columns(n_best, scores, more, line):
    options = argparse.Namespace(n_best=n_best, scores=scores, json=False)
    assert list(texts(7, {}, [ONE], options, CharacterTokenizer("ab"), name="all", more=more)) == [line]


def test_a_reached_end_is_a_token_and_infinity_is_null():
    options = argparse.Namespace(json=True)
    (line,) = texts(1, {"source": "é"}, [ONE], options, CharacterTokenizer("ab"), name="all")
    scores = {"score": -1.5, "log_prob": -3.0, "token_log_probs": [-1.0, -2.0, None]}
    expected = {"number": 1, "source": "é", "all": [{"text": "ab", "tokens": ["a", "b", "<eos>"]} | scores]}
    assert json.loads(line) == expected


def test_json_is_one_line_for_every_reader():
    assert as_json({"é": "雨"}) == '{"é": "雨"}'
    name = os.fsdecode(b"\xff.png")
    assert as_json({"image": name}) == r'{"image": "\udcff.png"}'
    assert json.loads(as_json({"image": name})) == {"image": name}
    assert as_json({"a": "b\x85\u2028\u2029\x1c\n"}) == r'{"a": "b\u0085\u2028\u2029\u001c\n"}'


def test_numbers_of_numpy_and_jax_are_plain():
    """As the scores and rows of a user's own task may be."""
    row = {"mean": np.float32(0.5), "label": np.int64(3), "p": np.array([0.25, np.inf]), "loss": jnp.float32(2)}
    plain = {"mean": 0.5, "label": 3, "p": [0.25, None], "loss": 2.0}
    assert json.loads(as_json(row)) == json.loads(as_indented_json(row)) == plain


def test_lines_are_printed_as_they_come_or_written(capsys, tmp_path):
    def lines():
        yield "one"
        assert capsys.readouterr().out == "one\n"
        yield "two"

    put(lines())
    assert capsys.readouterr().out == "two\n"
    put(iter(["one", "two"]), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("exists", [True, False])
def test_a_result_is_not_written_through_a_link(exists, tmp_path):
    """A link in another user's run may point anywhere."""
    outside, inside = tmp_path / "outside", tmp_path / "run" / "scores-test-best.json"
    inside.parent.mkdir()
    inside.symlink_to(outside)
    if exists:
        outside.write_text("mine")
    assert save_besides(inside, lambda path: write_text(path, "theirs"))
    assert outside.exists() is exists
    assert not exists or outside.read_text() == "mine"
    assert inside.read_text() == "theirs"
