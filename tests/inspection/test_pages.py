"""Pages of attention: what the file holds, its size and its error; `tests/browser` opens pages."""

import base64

import numpy as np
import pytest

from jaxformer.errors import ConfigError, DataError
from jaxformer.inspection import pages
from jaxformer.inspection.attention_maps import AttentionWeights
from jaxformer.inspection.pages import View, page
from tests.inspection.small import held, rows, view


def decoded(attention):
    data = base64.b64decode(attention["weights"])
    dtype, unit = {16: ("<u2", 65535), 32: ("<f4", 1)}[attention["bits"]]
    return np.frombuffer(data, dtype).reshape(attention["shape"]) / unit


def test_weights_keep_the_stated_precision():
    weights = np.array(rows(0, 3, 2, 7, 5), np.float32)
    for exact, error in ((False, pages.ERROR), (True, 0)):
        (attention,) = held(page([view(weights)], exact=exact))["views"][0]["attentions"]
        assert np.abs(decoded(attention) - weights).max() <= error
        assert attention["bits"] == (32 if exact else 16)


@pytest.mark.parametrize("value", [-0.25, 1.5, np.nan])
def test_weights_that_are_no_shares_are_exact(value):
    """As of one's own attention: 16 bits would not keep them."""
    weights = np.full((1, 1, 2, 2), value, np.float32)
    (attention,) = held(page([view(weights)]))["views"][0]["attentions"]
    np.testing.assert_array_equal(decoded(attention), weights)


def test_a_chosen_layer_and_head_keep_their_numbers():
    weights = np.array(rows(0, 3, 2, 7, 5), np.float32)
    (attention,) = held(page([view(weights)], layer=-1, head=1))["views"][0]["attentions"]
    assert attention["first"] == [2, 1]
    np.testing.assert_allclose(decoded(attention), weights[2:, 1:], atol=pages.ERROR)


def test_sixty_tokens_of_a_large_model_are_six_megabytes():
    """An encoder and a decoder of 12 layers with 16 heads: all three attentions."""
    weights = np.zeros((12, 16, 60, 60), np.float32)
    attention = AttentionWeights(("a",) * 60, ("b",) * 60, weights)
    whole = View("a", dict.fromkeys(("encoder.self", "decoder.self", "decoder.cross"), attention))
    assert len(page([whole])) < 6_000_000


def test_no_text_ends_its_element():
    text = "</script><script>alert(1)</script><!--"
    html = page([view(np.ones((1, 1, 1, 1)), text)], title=text)
    assert "<script>alert" not in html
    assert html.count("<!--") == 1  # of the mark
    assert held(html)["views"][0]["title"] == text


def test_a_notebook_shows_a_page_in_a_frame():
    frame = view(np.ones((1, 1, 1, 1)))._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"')
    assert frame.count("<") == 2  # the page is the text of an attribute


def test_what_cannot_be_a_page(monkeypatch):
    with pytest.raises(ConfigError, match="this model has no attention to show"):
        View("a", {})
    monkeypatch.setattr(pages, "MOST_WEIGHTS", 30)
    weights = np.ones((4, 2, 2, 2))
    with pytest.raises(DataError, match="would hold 32 weights, but may hold 30"):
        page([view(weights)])
    page([view(weights)], layer=0)
