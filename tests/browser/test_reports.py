"""The page of a test set in a real browser: what is shown equals the scores, and examples open their attention."""

import shlex

import numpy as np
import pytest

from jaxformer.inspection import reports
from jaxformer.inspection.attention_maps import AttentionWeights
from jaxformer.inspection.pages import View
from jaxformer.inspection.reports import CorpusRows, Example, LengthRow, Report, ScoreRow
from tests.inspection.small import rows

pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
QUOTES = 'It\'s a "dog" $HOME `x`'
NUMBER = 14

SCORES = (
    ScoreRow("BLEU", 31.25, (30.5, 32.75), 2, "tok:13a", 29.75, (1.5, 0.25, 2.625, 0.012)),
    ScoreRow("nats per token", 1.23456, None, 4, "mean", 1.5, None),
)
LENGTHS = (
    LengthRow(1, 4, 6, (ScoreRow("BLEU", 40.0, None),)),
    LengthRow(5, 9, 8, (ScoreRow("BLEU", 20.0, (15.0, 25.0)),)),
)


def example(number):
    texts = {
        "source": f"{MARKUP} {number}",
        "reference": "the old cat sleeps",
        "hypothesis": f"the cat {MARKUP} sleeps",
    }
    return Example(0, number, texts, {"chrf": float(number), "score": -1.5}, number, (number * 5) % 7 - 3)


CURVES = {
    "training loss": [(step, 8 - step / 50) for step in range(0, 201, 2)],
    "validation loss": [(100, 7.0), (200, 5.0)],
    "validation bleu": [(100, 10.0), (200, 30.0)],
}
REPORT = Report(
    [CorpusRows("test <b>", SCORES, "words", LENGTHS, "jaxformer inspect run --html page.html")],
    [*map(example, range(1, NUMBER + 1))],
    "chrF2",
    {"run": MARKUP},
    CURVES,
    {"stepping": 90.0, "saving": 10.0},
    "other",
)
WEIGHTS = np.array(rows(0, 2, 2, 3, 4), np.float32)


def look(one):
    names = ("▁a", "▁b", "▁c", "</s>")
    weights = WEIGHTS * (1 if one.number == 1 else 0.5)
    return View(f"input {one.number}", {"decoder.cross": AttentionWeights(names, names[:3], weights)})


@pytest.fixture
def tab(opened, monkeypatch):
    monkeypatch.setattr(reports, "NUM_VIEWS", 3)
    return opened(source=reports.page(REPORT, look, title=MARKUP))


def cells(tab, section, row):
    return tab.locator(f"#{section} tbody tr").nth(row).locator("th, td").all_inner_texts()


def articles(tab):
    return [
        int(name.split()[1]) for name in tab.eval_on_selector_all("article", "all => all.map(x => x.dataset.example)")
    ]


def test_the_scores_with_their_intervals_and_the_difference(tab):
    first = ["test <b>", "BLEU", "31.25", "30.50 to 32.75", "29.75", "+1.50", "0.25 to 2.63", "0.012"]
    assert cells(tab, "scores", 0) == first
    assert cells(tab, "scores", 1) == ["test <b>", "nats per token", "1.2346", "–", "1.5000", "-0.2654", "–", "–"]
    assert "A difference is this run minus other" in tab.inner_text("#scores caption")


def test_the_scores_by_length(tab):
    assert cells(tab, "lengths", 0) == ["1–4", "6", "40.00", "–"]
    assert cells(tab, "lengths", 1) == ["5–9", "8", "20.00", "15.00 to 25.00"]
    bar = tab.locator("#lengths .bar").nth(1)
    box, line, point = (x.bounding_box() for x in (bar, bar.locator("b"), bar.locator("i")))
    assert line["width"] / box["width"] == pytest.approx(10 / 25, abs=0.02)  # of the scale from 15 to 40
    assert (point["x"] + point["width"] / 2 - box["x"]) / box["width"] == pytest.approx(5 / 25, abs=0.02)


def test_the_worst_come_first_and_the_order_can_be_chosen(tab):
    assert articles(tab) == [*range(1, 11)]
    tab.click("#more")
    assert articles(tab) == [11, 12, 13, 14]
    order = tab.locator("#examples select")
    order.select_option("best first")
    assert articles(tab) == [*range(14, 4, -1)]
    order.select_option("worse than other")
    gains = {one.number: one.gain for one in REPORT.examples}
    assert [gains[n] for n in articles(tab)] == sorted(gains.values())[:10]
    order.select_option("better than other")
    assert [gains[n] for n in articles(tab)] == sorted(gains.values(), reverse=True)[:10]
    assert "+3.00 over other" in tab.locator("article h3").first.inner_text()


def test_what_the_reference_lacks_is_marked(tab):
    first = tab.locator("article").first
    assert first.locator("dd").all_inner_texts() == [*example(1).texts.values()]
    assert "".join(first.locator("mark").all_inner_texts()) == MARKUP.replace(" ", "")
    assert tab.locator("img").count() == 0
    assert tab.inner_text("h1") == MARKUP


def test_an_example_opens_its_attention_and_others_have_the_command(tab):
    """Also with the keyboard."""
    assert "Attention of 6 examples" in tab.inner_text("#examples .note")
    tab.focus("article [data-opens='0']")
    tab.keyboard.press("Enter")
    assert tab.locator("main dd").first.inner_text() == "input 1"
    assert tab.evaluate("document.activeElement.id") == "attention"
    tab.click("[data-map='1 0']")
    shown = tab.eval_on_selector_all("main td[data-column]", "all => all.map(x => Number(x.textContent))")
    np.testing.assert_allclose(np.reshape(shown, (3, 4)), WEIGHTS[1, 0], atol=6e-4)
    other = tab.locator("article").nth(4)
    other.locator("summary").click()
    assert shlex.split(other.locator("code").inner_text()) == [
        *"jaxformer inspect run --html page.html --".split(),
        f"{MARKUP} 5",
    ]


def test_a_command_quotes_its_text(opened):
    one = Example(0, 1, {"text": QUOTES}, {}, 1.0)
    tab = opened(source=reports.page(Report([CorpusRows("a", (), command="inspect run")], [one]), lambda one: None))
    tab.click("article summary")
    assert shlex.split(tab.inner_text("article code")) == ["inspect", "run", "--", QUOTES]
    assert tab.locator("#curves, #times, #lengths").count() == 0


def test_curves_go_right_with_steps_and_up_with_values(tab):
    """The ticks have the numbers of their places."""
    figure = tab.locator("figure").first
    points = {}
    for name in ("training loss", "validation loss"):
        path = figure.locator(f"[data-curve='{name}']").get_attribute("d")
        points[name] = np.array([pair.split() for pair in path[1:].split("L")], float)
    ticks = figure.locator("svg text").evaluate_all(
        "all => all.map(x => [x.textContent, x.getAttribute('x'), x.getAttribute('y')])"
    )
    x = {int(text): float(at) for text, at, y in ticks if text != "step" and float(y) > 205}
    y = {float(text): float(at) - 4 for text, _, at in ticks if text != "step" and float(at) < 205}
    assert {0, 100, 200} <= {*x}
    assert {4, 6, 8} <= {*y}
    np.testing.assert_allclose(points["validation loss"][:, 0], [x[100], x[200]], atol=0.1)
    np.testing.assert_allclose(
        points["training loss"][[0, 50, 100]], [[x[0], y[8]], [x[100], y[6]], [x[200], y[4]]], atol=0.1
    )
    assert y[8] < y[4]
    assert tab.locator("figure").count() == 2
    figure.locator("summary").click()
    assert figure.locator("tbody tr").last.inner_text().split("\t") == ["200", "validation loss", "5.0000"]


def test_where_the_time_went(tab):
    assert cells(tab, "times", 0) == ["stepping", "1:30 min", "90.0%"]
    assert cells(tab, "times", 1) == ["saving", "10.0 s", "10.0%"]


@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_every_width_and_both_schemes(opened, width):
    for scheme in ("light", "dark"):
        tab = opened(source=reports.page(REPORT, look), width=width, scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        light = lambda tab=tab: tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light() == (scheme == "light")
        tab.click("#theme")
        assert light() == (scheme == "dark")
