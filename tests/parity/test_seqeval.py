"""Precision, recall and F1 of spans against seqeval, for any labels of its default mode."""

import random

import pytest

from jaxformer.evaluation.spans import span_scores, spans


@pytest.mark.parity
def test_spans_are_those_of_seqeval():
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed: pip install seqeval")
    draw = random.Random(0)
    names = ["O", *(f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC"))]
    for number in range(300):
        sides = [[[draw.choice(names) for _ in range(n)] for n in range(1, 12)] for _ in range(2)]
        entities = seqeval.sequence_labeling.get_entities(sides[0][-1])
        assert [(kind, start, stop + 1) for kind, start, stop in entities] == spans(sides[0][-1])
        if number % 5 == 0:
            found = [score.value / 100 for score in span_scores(*sides)]
            expected = [f(*sides) for f in (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)]
            assert found == pytest.approx(expected)
