"""The page of a test set: what it holds, whose attention, and its size; `tests/browser` opens it."""

import json
import math

import numpy as np
import pytest

from jaxformer.errors import DataError
from jaxformer.inspection import reports
from jaxformer.inspection.reports import CorpusRows, Example, Report, ScoreRow
from tests.inspection.small import held, rows, view

MARKUP = "</script><script>alert(1)</script><!--"


def example(number, rank=None, text="a dog"):
    return Example(
        0, number, {"source": text, "hypothesis": f"{text} {number}"}, {"chrf": float(number)}, rank or number
    )


def report(examples, **changes):
    return Report([CorpusRows("test", [ScoreRow("BLEU", 12.5, (10.0, 15.0))])], examples, "chrF2", **changes)


def look(example):
    return view(np.array(rows(0, 1, 1, 2, 2)), f"view of {example.number}")


def test_the_worst_and_the_best_have_their_attention(monkeypatch):
    monkeypatch.setattr(reports, "NUM_VIEWS", 2)
    data = held(reports.page(report([example(n) for n in (4, 1, 6, 2, 5, 3)]), look))
    found = data["report"]["examples"]
    assert [one["number"] for one in found] == [1, 2, 3, 4, 5, 6]
    opened = {one["number"]: data["views"][one["view"]]["title"] for one in found if "view" in one}
    assert opened == {n: f"view of {n}" for n in (1, 2, 5, 6)}


def test_an_example_without_attention_is_shown_without():
    def some(example):
        if example.number == 1:
            raise DataError("too long")
        return None if example.number == 2 else look(example)

    data = held(reports.page(report([example(n) for n in (1, 2, 3)]), some))
    assert [one.get("view") for one in data["report"]["examples"]] == [None, None, 0]
    assert data["report"]["wanted"] == 1


@pytest.mark.parametrize("limit", [120_000, 200_000])
def test_a_page_is_no_larger_than_its_limit(limit):
    """The extreme examples come first, texts take a part of the room, and the page says what is missing."""
    long = [example(n, text="<" * 800) for n in range(1, 41)]
    big = lambda example: view(np.array(rows(0, 12, 4, 10, 10)), "a")
    html = reports.page(report(long), big, most_bytes=limit)
    assert len(html.encode()) <= limit
    data = held(html)
    numbers = [one["number"] for one in data["report"]["examples"]]
    assert 1 in numbers
    assert 40 in numbers
    assert len(numbers) < data["report"]["total"] == 40
    assert 0 < len(data["views"]) < data["report"]["wanted"]


def test_text_and_numbers_that_html_or_json_lack():
    one = Example(0, 1, {"source": MARKUP}, {"score": -math.inf}, 1.0)
    html = reports.page(report([one], facts={"run": MARKUP}), lambda example: None, title=MARKUP)
    assert "<script>alert" not in html
    data = json.loads(json.dumps(held(html)), parse_constant=pytest.fail)
    assert data["report"]["examples"][0]["numbers"] == {"score": None}
    assert data["report"]["facts"] == {"run": MARKUP}
