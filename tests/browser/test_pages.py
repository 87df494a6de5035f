"""Pages in a real browser: what is shown equals the arrays, and what is pointed at changes it (`make test-browser`)."""

import dataclasses
import threading

import numpy as np
import pytest

from jaxformer.cli import serving
from jaxformer.inspection import attention_maps
from jaxformer.inspection.attention_maps import AttentionWeights, Patches, places
from jaxformer.inspection.beams import Node
from jaxformer.inspection.pages import View
from tests.inspection.small import rows

pytestmark = pytest.mark.browser

SHOWN = 6e-4
"""The error of a number with three decimals: half a unit of the last one, and that of the weight."""

MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
ENGLISH = ("▁The", "▁tired", "▁c", "at", "▁sle", "pt", ".", "</s>")
FRENCH = ("▁Le", "▁chat", "▁dor", "mait", "</s>")
GRID = Patches(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3), (4, 4))
PATCHES = ("class token", *places(GRID))


def weights(seed, *shape):
    return np.array(rows(seed, *shape), np.float32)


GUESSES = tuple((("▁Le", 0.75), ("▁La", 0.125)) for _ in FRENCH)
VIEWS = {
    "translation": View(
        MARKUP,
        {
            "encoder.self": AttentionWeights(ENGLISH, ENGLISH, weights(0, 3, 2, 8, 8)),
            "decoder.self": AttentionWeights(FRENCH, FRENCH, weights(1, 3, 2, 5, 5), predictions=GUESSES),
            "decoder.cross": AttentionWeights(ENGLISH, FRENCH, weights(2, 3, 2, 5, 8), predictions=GUESSES),
        },
        {"translation": MARKUP},
        (
            (Node(-1, "▁Le", -0.25, -0.25, "live"), Node(-1, "▁La", -1.5, -1.5, "live")),
            (Node(1, "▁chat", -1.75, -0.875, "live"), Node(0, "</s>", -2.0, -1.0, "finished")),
            (Node(0, MARKUP, -3.0, -1.0, "pruned"),),
        ),
    ),
    "language_model": View("a", {"decoder.self": AttentionWeights(ENGLISH, ENGLISH, weights(3, 2, 4, 8, 8))}),
    "vision": View("cat.png", {"encoder.self": AttentionWeights(PATCHES, PATCHES, weights(4, 2, 2, 17, 17), GRID)}),
    "grid": View("cat.png", {"grid": AttentionWeights(places(GRID), places(GRID), weights(5, 1, 1, 16, 16), GRID)}),
    "captioning": View(
        "a.png", {"decoder.cross": AttentionWeights(places(GRID), FRENCH, weights(6, 2, 2, 5, 16), GRID)}
    ),
    "long": View("a", {"decoder.self": AttentionWeights(("a",) * 150, ("a",) * 150, weights(7, 1, 1, 150, 150))}),
}


def numbers(tab):
    """The numbers of the table."""
    cells = (
        "rows => rows.map(row => [...row.querySelectorAll('td[data-column]')].map(cell => Number(cell.textContent)))"
    )
    return np.array(tab.eval_on_selector_all("#large tbody tr", cells))


def choose(tab, layer, head):
    tab.click(f"[data-map='{layer} {head}']")


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "long"])
def test_the_table_of_every_head_has_its_weights(opened, name):
    """Also the means of layers, and the rollout of self-attention."""
    view = VIEWS[name]
    tab = opened(view)
    for number, kind in enumerate(sorted(view.attentions, key=lambda name: name != view.default), 1):
        if len(view.attentions) > 1:
            tab.click(f".kinds button:nth-child({number})")
        attention = view.attentions[kind].weights
        for layer in range(attention.shape[0]):
            for head in range(attention.shape[1]):
                choose(tab, layer, head)
                np.testing.assert_allclose(numbers(tab), attention[layer, head], atol=SHOWN)
            if attention.shape[1] > 1:
                choose(tab, layer, "mean")
                np.testing.assert_allclose(numbers(tab), attention[layer].mean(0), atol=SHOWN)
            if kind != "decoder.cross":
                choose(tab, layer, "rollout")
                expected = attention_maps.rollout(attention[: layer + 1])
                np.testing.assert_allclose(numbers(tab), expected, atol=SHOWN)


def test_whole_words(opened):
    tab = opened(VIEWS["translation"])
    tab.check("#words")
    choose(tab, 1, 0)
    cross = VIEWS["translation"].attentions["decoder.cross"]
    expected = attention_maps.by_word(attention_maps.select(cross, layer=1, head=0))
    np.testing.assert_allclose(numbers(tab), expected.weights, atol=SHOWN)
    assert tab.locator("thead th span").all_inner_texts() == list(expected.source)


def test_pointing_at_a_token_shows_where_it_looks(opened):
    tab = opened(VIEWS["translation"])
    choose(tab, 2, 1)
    cross = VIEWS["translation"].attentions["decoder.cross"].weights[2, 1]
    shown = lambda axis: [float(text) for text in tab.locator(f"[data-{axis}] > small").all_inner_texts() if text]
    tab.hover(".token[data-row='3']")
    np.testing.assert_allclose(shown("column"), cross[3], atol=SHOWN)
    assert "mait looks at" in tab.inner_text("#readout")
    assert "Predicted here: ▁Le 75.0%, ▁La 12.5%." in tab.inner_text("#readout")
    tab.hover(".token[data-column='2']")
    np.testing.assert_allclose(shown("row"), cross[:, 2], atol=SHOWN)
    tab.focus(".token[data-row='0']")
    tab.keyboard.press("ArrowRight")
    np.testing.assert_allclose(shown("column"), cross[1], atol=SHOWN)


def test_a_threshold_leaves_the_large_weights(opened):
    tab = opened(VIEWS["language_model"])
    choose(tab, 0, 0)
    tab.locator("#threshold").fill("0.2")
    own = VIEWS["language_model"].attentions["decoder.self"].weights[0, 0]
    drawn = tab.eval_on_selector_all(
        "td[data-column]", "cells => cells.map(x => Number(x.style.getPropertyValue('--w')) > 0)"
    )
    np.testing.assert_array_equal(np.reshape(drawn, own.shape), own >= 0.2)


def test_the_entropy_and_the_distance_of_a_head(opened):
    tab = opened(VIEWS["language_model"])
    own = VIEWS["language_model"].attentions["decoder.self"].weights[1, 3]
    distance = (own * np.abs(np.subtract.outer(np.arange(8), np.arange(8)))).sum(-1).mean()
    expected = f"{attention_maps.entropy(own).mean():.2f} nats\n{distance:.1f} apart"
    assert tab.inner_text("[data-map='1 3'] small") == expected


def test_markup_is_shown_as_text(opened):
    tab = opened(VIEWS["translation"], title=MARKUP)
    assert tab.locator("dd").all_inner_texts() == [MARKUP, MARKUP]
    assert tab.inner_text("h1") == MARKUP
    assert tab.locator("img, main script").count() == 0


def test_a_picture_is_bright_where_the_network_looks(opened):
    """The patch that gets the largest weight differs most from gray; pointing at a patch shows where that one looks."""
    tab = opened(VIEWS["vision"])
    choose(tab, 1, 1)
    own = VIEWS["vision"].attentions["encoder.self"].weights[1, 1]
    pixels = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 16, 16).data]"

    def brightest():
        red, _, blue, _ = np.moveaxis(np.reshape(tab.eval_on_selector(".picture", pixels), (16, 16, 4)), 2, 0)
        return (red - blue)[::4, ::4].argmax()

    assert brightest() == own[0, 1:].argmax()
    box = tab.locator(".picture").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.4)  # row 1, column 3
    assert tab.inner_text("#readout").startswith("1,3 looks at")
    assert brightest() == own[1 + 7, 1:].argmax()


def test_the_search_is_a_tree(opened):
    """A hypothesis shows its whole text, and leads back to the first step through those that it continues."""
    tab = opened(VIEWS["translation"])
    tab.hover("[data-node='1 1']")
    expected = "▁Le </s>: finished, probability 0.135, log-probability -2.0000, score -1.0000"
    assert tab.inner_text(".hypothesis") == expected
    assert tab.eval_on_selector_all(".chosen[data-node]", "nodes => nodes.map(x => x.dataset.node)") == ["0 0", "1 1"]
    tab.mouse.move(0, 0)
    tab.focus("[data-node='2 0']")
    assert tab.inner_text(".hypothesis").startswith(f"▁La ▁chat {MARKUP}: pruned")
    assert tab.locator(".tree path.finished").count() == 1


def test_two_searches_beside_each_other(opened):
    """Words and hypotheses that only one of them has are marked; the attention of the other can be chosen."""
    ours = VIEWS["translation"]
    theirs = View(
        MARKUP,
        {name: dataclasses.replace(x, weights=x.weights[::-1]) for name, x in ours.attentions.items()},
        {"translation": f"Le chat {MARKUP} dort"},
        (
            (Node(-1, "▁La", -1.5, -1.5, "live"),),
            (Node(0, "▁chat", -1.75, -0.875, "live"), Node(0, "▁La", -1.75, -0.875, "pruned")),
        ),
    )
    ours = dataclasses.replace(ours, results={"translation": f"Le vieux chat {MARKUP}"})
    tab = opened(ours, against=[theirs], names=("a <b>", "b"))
    left, right = tab.locator(".texts td").all()
    assert [x.inner_text() for x in (left, right)] == [f"Le vieux chat {MARKUP}", f"Le chat {MARKUP} dort"]
    assert [x.locator("mark").all_inner_texts() for x in (left, right)] == [["vieux"], ["dort"]]
    assert tab.locator(".texts thead th").all_inner_texts() == ["", "a <b>", "b"]
    only = lambda id: tab.eval_on_selector_all(f"#{id} .only", "nodes => nodes.map(x => x.dataset.node)")
    assert only("search") == ["0 0", "1 1", "2 0"]  # Le, Le </s>, La chat and markup; both have La and La chat
    assert only("search-other") == ["1 1"]
    assert tab.get_attribute("#search-other [data-node='1 1']", "aria-label") == "step 2: ▁La, pruned, only here"
    tab.hover("#search-other [data-node='1 0']")
    assert tab.inner_text("#search-other .hypothesis").startswith("▁La ▁chat: live")
    tab.select_option(".controls select", f"{MARKUP} (b)")
    choose(tab, 2, 1)
    np.testing.assert_allclose(numbers(tab), theirs.attentions["decoder.cross"].weights[2, 1], atol=SHOWN)
    assert tab.locator(".texts thead th").all_inner_texts() == ["", "b", "a <b>"]
    assert tab.locator("img").count() == 0


def test_a_long_text_has_its_rows_on_demand(opened):
    tab = opened(VIEWS["long"])
    assert len(numbers(tab)) == 64
    tab.click("#after")
    own = VIEWS["long"].attentions["decoder.self"].weights[0, 0]
    np.testing.assert_allclose(numbers(tab), own[64:128], atol=SHOWN)


@pytest.mark.parametrize("width", [360, 1280, 2560])
@pytest.mark.parametrize("name", ["translation", "captioning", "vision"])
def test_every_width_and_both_schemes(opened, name, width):
    """Nothing is wider than the window; the colors are those of the scheme, or of the button."""
    for scheme in ("light", "dark"):
        tab = opened(VIEWS[name], width=width, scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        light = lambda tab=tab: tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light() == (scheme == "light")
        tab.click("#theme")
        assert light() == (scheme == "dark")


def test_a_notebook_shows_the_same(opened, tmp_path):
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><meta charset=utf-8>{VIEWS['language_model']._repr_html_()}"
    )
    tab = opened(address=(tmp_path / "notebook.html").as_uri())
    frame = tab.frame_locator("iframe")
    frame.locator("[data-map='0 0']").click()
    assert frame.locator("h2").first.inner_text() == "Layer 0, head 0"


def test_the_live_form(opened):
    """Type a text, see its attention; one that is too long or refused says so beside the form."""

    def look(text):
        return View(text, VIEWS["translation"].attentions, {"translation": text[::-1]})

    with serving.make_server(look, title="run", port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = opened(address=f"http://127.0.0.1:{server.server_port}/")
        tab.fill("textarea", MARKUP)
        tab.click("form button")
        assert tab.locator("dd").all_inner_texts() == [MARKUP, MARKUP[::-1]]
        assert tab.input_value("textarea") == MARKUP
        choose(tab, 0, 0)
        assert len(numbers(tab)) == len(FRENCH)
        server.shutdown()
