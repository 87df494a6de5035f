"""The texts of the two-word experiment, and its page beside its record."""

import dataclasses
import json
import pathlib

import numpy as np

from experiments.cues import __main__ as cues

PAGE = pathlib.Path(cues.__file__).parent


def test_labels_follow_the_words():
    """L14: "not" turns the verdict that comes after it; spam is both words, or one of two pairs of words."""
    rng, at = np.random.default_rng(0), np.arange(200)
    for task, draw in cues.TASKS.items():
        texts, labels, asks, decides = draw(rng, 200)
        assert set(labels.tolist()) == {0, 1}
        assert (texts[:, 0] == cues.START).all()
        assert (asks != decides).all()
        for text, label, ask in zip(texts.tolist(), labels, asks, strict=True):
            if task.startswith("a negation"):
                turned = text.index(cues.NOT) < ask
                assert label == ((cues.GOOD in text) != turned)
            elif task.endswith("both words"):
                assert label == (cues.FREE in text and cues.CLICK in text)
            else:
                assert label == ((cues.FREE in text) == (cues.CLICK in text))
        rest = [(texts[at, places] < cues.NOISE).sum() for places in (asks, decides)]
        assert (texts < cues.NOISE).sum() == 200 + sum(rest)  # no other word of a task is in a text


def test_the_page_has_the_results():
    """Its table equals results.json, and the results support its statements."""
    page = (PAGE / "README.md").read_text(encoding="utf-8")
    results = json.loads((PAGE / "results" / "results.json").read_text(encoding="utf-8"))
    assert cues.tables(results) in page
    assert results["scale"] == dataclasses.asdict(cues.FULL)
    right = {(r["task"], r["model"]): r["accuracy"] for r in results["records"]}
    negation, both, pair = cues.TASKS
    assert max(right[negation, "average"] + right[negation, "attention without positions"]) < 60
    assert (
        min(right[negation, "attention"] + right[pair, "attention"] + right[pair, "attention without positions"]) >= 95
    )
    assert min(right[both, "average"]) == 100
    assert max(right[pair, "average"]) < 60
