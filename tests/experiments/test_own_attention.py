"""The tasks of the comparison of attentions, its measures, and its smoke version."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments.own_attention import __main__ as command
from experiments.own_attention import measures, training
from experiments.own_attention.training import LENGTH, NEEDLE, NEEDLES, VALUES
from tests.modules.small import quick

PAGE = pathlib.Path(__file__).parents[2] / "experiments" / "own_attention"
TINY = dataclasses.replace(command.SMOKE, sentences=40, window=12)


def test_the_answer_to_a_question_is_the_needle_of_its_name():
    tokens, labels, counted = training.needles(np.random.default_rng(0), 50)
    assert counted.sum(1).tolist() == [2] * 50
    assert ((tokens[:, :LENGTH] >= NEEDLE).sum(1) == NEEDLES).all()
    for text, answers in zip(tokens.tolist(), labels[:, LENGTH:].tolist(), strict=True):
        for asked, answer in zip(text[LENGTH:], answers, strict=True):
            assert text.count(answer) == 1
            assert (answer - NEEDLE) // VALUES == asked - training.ASK
    assert (tokens[:, LENGTH] != tokens[:, LENGTH + 1]).all()


def test_windows_of_characters():
    text = training.Characters.of(TINY)
    tokens, labels, counted = text(np.random.default_rng(0), 6)
    assert tokens.shape == labels.shape == counted.shape == (6, 12)
    assert np.array_equal(tokens[:, 1:], labels[:, :-1])
    held_out = text.held_out(3)[0]
    end = len(text.text) * 9 // 10
    assert np.array_equal(held_out.ravel(), text.text[end : end + 36])


class Knows:
    """A network whose only map looks at the answer with weight -3, and at the first token with weight 1."""

    def __init__(self, batch):
        tokens, labels, _ = batch
        self.logits = 9.0 * jax.nn.one_hot(labels, NEEDLE + NEEDLES * VALUES)
        self.maps = np.zeros((1, len(tokens), 1, tokens.shape[1], tokens.shape[1]))
        self.maps[..., 0] = 1
        self.maps[0, :, 0, LENGTH:] -= 3 * (tokens[:, None] == labels[:, LENGTH:, None])

    def apply(self, params, tokens):
        return self.logits


def test_the_measures_of_retrieval(monkeypatch):
    batch = training.needles(np.random.default_rng(1), 8)
    net = Knows(batch)
    monkeypatch.setattr(measures, "maps", lambda net, params, tokens: net.maps)
    found = measures.retrieval(net, {}, batch)
    assert found["accuracy"] == 100
    assert 70 < found["best"] <= 80  # 3 of 4, or 2 of 2 where the answer is the first token
    assert found["best"] == found["mean"]


def test_the_measures_of_language(monkeypatch):
    """Weights of 1 on two keys: two keys in use, and all other visible weights are 0."""
    net = training.network("softmax", 9, 8)
    params = quick(net.init)(jax.random.key(0))
    tokens = np.ones((2, 4), np.int32)
    weights = np.zeros((1, 2, 1, 4, 4))
    weights[..., 0], weights[..., 1:, 1] = 0.5, -0.5
    monkeypatch.setattr(measures, "maps", lambda *_: weights)
    found = measures.language(net, params, (tokens, tokens, np.ones((2, 4), bool)))
    assert found["keys"] == pytest.approx((1 + 2 + 2 + 2) / 4)
    assert found["zeros"] == pytest.approx(100 * 3 / 10)
    assert 0 < found["loss"] < 9


def test_a_table_has_the_mean_and_the_range():
    records = [
        {"attention": name, "parameters": 1234, "loss": loss, "keys": 2.0, "zeros": 5.0}
        for name in ("softmax", "sparsemax")
        for loss in (1.0, 2.0)
    ]
    lines = command.tables({"parts": {"language": records}}).splitlines()
    assert lines[2] == "| softmax | 1,234 | 1.5000 (1.0000 to 2.0000) | 2.0 (2.0 to 2.0) | 5.0% (5.0% to 5.0%) |"
    assert len(lines) == 4


def test_the_page_has_the_results():
    """Its tables equal results.json, and the results support its statements."""
    page = (PAGE / "README.md").read_text(encoding="utf-8")
    results = json.loads((PAGE / "results" / "results.json").read_text(encoding="utf-8"))
    assert command.tables(results) in page
    assert results["scale"] == dataclasses.asdict(command.FULL)
    assert ("has not been recorded" in page) == ("translation" not in results["parts"])
    values = lambda part, name, key: [x[key] for x in results["parts"][part] if x["attention"] == name]
    assert all(min(values("retrieval", name, "accuracy")) == 100 for name in training.ATTENTIONS)
    assert min(values("retrieval", "softmax", "best")) < max(values("retrieval", "differential", "best"))
    assert max(values("language", "softmax", "loss")) < min(values("language", "sparsemax", "loss"))
    assert max(values("language", "sparsemax", "loss")) < min(values("language", "differential", "loss"))
    assert min(values("language", "sparsemax", "zeros")) > 93


@pytest.mark.full
def test_a_smoke_run_resumes(tmp_path):
    program = [sys.executable, "-m", "experiments.own_attention", "--smoke", "--out", str(tmp_path)]
    first = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert first.returncode == 0, first.stderr
    assert {path.name for path in tmp_path.glob("*.png")} == {"differential.png"}
    records = {path: path.read_text() for path in (tmp_path / "records").iterdir()}
    assert len(records) == 3
    again = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert first.stdout.endswith(again.stdout)
    assert again.stdout.startswith("| retrieval |")
    assert records == {path: path.read_text() for path in (tmp_path / "records").iterdir()}
    program.remove("--smoke")
    refused = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "choose another --out" in refused.stderr
