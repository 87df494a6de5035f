"""Output of commands: columns, and JSON that every reader accepts."""

import argparse
import json
import math
import os

import jax.numpy as jnp
import numpy as np

from jaxformer.cli.output import as_columns, as_data, as_indented_json, as_json, put
from jaxformer.tasks.search import Candidate
from jaxformer.tokenizers.characters import CharacterTokenizer

ONE = Candidate("ab", -1.5, (4, 5), -3.0, (-1.0, -2.0, -math.inf))


def test_columns():
    options = argparse.Namespace(n_best=1, scores=False)
    assert as_columns(7, ONE, options) == "ab"
    assert as_columns(7, ONE, options, "0-0") == "ab\t0-0"
    assert as_columns(7, ONE, argparse.Namespace(n_best=1, scores=True)) == "-1.5000\tab"
    assert as_columns(7, ONE, argparse.Namespace(n_best=2, scores=False)) == "7\t-1.5000\tab"


def test_a_reached_end_is_a_token_and_infinity_is_null():
    data = json.loads(as_json({"number": 1, "all": [as_data(ONE, CharacterTokenizer("ab"))]}))
    scores = {"score": -1.5, "log_prob": -3.0, "token_log_probs": [-1.0, -2.0, None]}
    assert data == {"number": 1, "all": [{"text": "ab", "tokens": ["a", "b", "<eos>"]} | scores]}
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
