"""The ranking of training data: its scores by their definitions, and the whole experiment on a small corpus."""

import json
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data_ranking import __main__ as ranking
from jaxformer.data.pairs import Parallel
from jaxformer.errors import DataError


def loss(weights, rows):
    """The squares of ``x w - y``, and how many there are: all but the first entry of a row may be padding."""
    x, y, valid = rows
    return jnp.where(valid, jnp.square(x @ weights - y), 0.0).sum(), valid.sum().astype(jnp.float32)


def mean(weights, rows):
    total, count = loss(weights, rows)
    return total / count


@pytest.mark.full
def test_scores_follow_their_definitions():
    """Influence: the change of the good rows' loss after a small step on one row; self-influence: of its own loss."""
    draw = np.random.default_rng(0)
    weights, step = jnp.asarray(draw.standard_normal(3), jnp.float32), 1e-3
    arrays = lambda rows: (draw.standard_normal((rows, 4, 3)), draw.standard_normal((rows, 4)))
    valid = jnp.arange(4)[None] < jnp.array([[4], [2], [1]])
    rows, good = (
        (*(jnp.asarray(x, jnp.float32) for x in arrays(n)), v) for n, v in ((3, valid), (5, jnp.ones((5, 4), bool)))
    )
    got = ranking.scores_of(loss, weights, jax.grad(mean)(weights, good), rows)
    for i, own in enumerate(got.tolist()):
        row = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], rows)
        moved = weights - step * jax.grad(mean)(weights, row)
        own_drop, good_rise = (float(mean(weights, x) - mean(moved, x)) for x in (row, good))
        np.testing.assert_allclose(own[:2], [mean(weights, row), loss(weights, row)[0]], rtol=1e-5)
        np.testing.assert_allclose(own[2:], [own_drop / step, -good_rise / step], rtol=0.05, atol=0.05)


def test_the_largest_comes_first_and_nan_last():
    assert ranking.ranked(np.array([1.0, np.nan, 3.0, 1.0])).tolist() == [3, 1, 4, 2]


def test_scores_belong_to_a_training(tmp_path, monkeypatch):
    """Another run in its place must not find them; an interrupted computation saves none."""
    reasons = ["done", "interrupted", "time"]
    ended = lambda *given, **options: types.SimpleNamespace(reason=reasons.pop(0), state=types.SimpleNamespace(step=9))
    monkeypatch.setattr(ranking.jaxformer, "train", ended)

    class Ranking:
        def __init__(self, config, run):
            self.num_parameters, self.steps = 1, (1,)
            self.corpus = types.SimpleNamespace(train=Parallel(("a",) * 800, ("b",) * 800))

        def validation(self):
            return 1.0, None

        def scores(self, folder, good):
            folders.append(folder)
            return np.zeros((800, len(ranking.SCORES))), 1.0

    folders = []
    monkeypatch.setattr(ranking, "Ranking", Ranking)
    words = ["--smoke", "--out", str(tmp_path)]
    assert [ranking.main(words) for _ in range(3)] == [0, 130, 85]
    assert folders == [tmp_path / "run" / "parts"]


def test_the_seconds_of_a_ranking_are_those_of_all_its_calls(tmp_path, monkeypatch):
    """Of a ranking that was stopped, the results had the time of the last call."""
    part = types.SimpleNamespace(shapes=[(2, 8, 8)])
    found: Any = ranking.Ranking.__new__(ranking.Ranking)
    found.pairs = types.SimpleNamespace(tokens=[0] * 4, plan=part, steps_per_epoch=2)
    found._scores = lambda step, good: np.column_stack([[2 * step, 2 * step + 1], np.ones((2, 4))])
    monkeypatch.setattr(ranking, "ROWS_OF_A_PART", 2)
    clock = iter([0.0, 5.0, 10.0, 13.0, 20.0, 21.0])
    monkeypatch.setattr(ranking.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(ranking, "track", lambda steps, *given, **options: steps)
    scores, seconds = found.scores(tmp_path, None)
    assert (seconds, scores.shape) == (8.0, (4, 4))
    sorted(tmp_path.iterdir())[-1].unlink()
    again, seconds = found.scores(tmp_path, None)
    assert seconds == 6.0
    np.testing.assert_array_equal(again, scores)


@pytest.mark.full
def test_placeholders_are_surfaced_and_the_command_resumes(tmp_path, monkeypatch):
    calls, scores_of = [], ranking.scores_of
    monkeypatch.setattr(ranking, "scores_of", lambda *given: calls.append(0) or scores_of(*given))
    monkeypatch.setattr(ranking, "ROWS_OF_A_PART", 200)
    words = ["--smoke", "--out", str(tmp_path)]
    assert ranking.main(words) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["pairs"], results["left out"]) == (800, 0)
    for name in ("loss", "self-influence", "influence"):
        assert max(results["ranks of the placeholders"][name].values()) <= 40, name  # of 800
    assert len((tmp_path / "first.tsv").read_text().splitlines()) == 1 + 4 * 100

    whole, parts = len(calls), sorted((tmp_path / "run" / "parts").iterdir())
    parts[-1].unlink()
    assert ranking.main(words) == 0
    again = json.loads((tmp_path / "results.json").read_text())
    assert 0 < len(calls) - whole <= whole / (len(parts) - 1)  # that part only
    assert again["first lines"] == results["first lines"]


def test_pairs_that_are_left_out_are_an_error_of_the_data(tmp_path, monkeypatch, capsys):
    """One line with exit code 2; it was 1, after which the same command may be tried again."""
    config, _ = ranking.smoke_config(tmp_path)
    path = tmp_path / "multi30k" / "train.en"
    path.write_text(f"\n{path.read_text()}".removesuffix(path.read_text().splitlines()[-1] + "\n"))
    monkeypatch.setattr(ranking, "training_config", lambda directory: config)
    monkeypatch.setattr(ranking.jaxformer, "train", lambda *given, **options: types.SimpleNamespace(reason="done"))
    monkeypatch.setattr(ranking.jaxformer, "load", lambda run: types.SimpleNamespace(params={}, steps=(1,)))
    assert ranking.main(["--out", str(tmp_path / "out")]) == DataError.exit_code
    assert "lines are counted, so none may be left out, but these are: [1]" in capsys.readouterr().err
