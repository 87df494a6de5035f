"""Expected utilities of texts, against sacrebleu."""

import numpy as np
import pytest
import sacrebleu

from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import minimum_bayes_risk
from jaxformer.tasks.minimum_bayes_risk import _expected, expected_utilities, ranked
from jaxformer.tasks.search import Candidate

TEXTS = [
    ["The dog runs.", "A dog runs.", "The dogs ran home, early."],
    ["été", "", "l'été est là."],
]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_expected_utilities_are_means_of_sacrebleu(utility):
    """Each candidate with each of its sentence as the reference, words as sacrebleu splits them."""
    metric = sacrebleu.CHRF() if utility == "chrf" else sacrebleu.BLEU(effective_order=True)
    expected = [[np.mean([metric.sentence_score(a, [b]).score for b in row]) for a in row] for row in TEXTS]
    found = expected_utilities(TEXTS, utility)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert found.std(1).min() > 0.1


def test_candidates_are_ranked_by_their_expected_utilities():
    own = ranked([[Candidate(text, 0.0, ()) for text in TEXTS[0]]], "chrf")[0]
    (utilities,) = expected_utilities(TEXTS[:1], "chrf")
    assert [(one.text, one.score) for one in own] == [(TEXTS[0][i], utilities[i]) for i in np.argsort(-utilities)]


def test_one_program_serves_any_number_of_sentences():
    expected_utilities(TEXTS, "bleu")
    before = _expected._cache_size()
    np.testing.assert_array_equal(expected_utilities(TEXTS[1:], "bleu"), expected_utilities(TEXTS, "bleu")[1:])
    assert _expected._cache_size() == before


def test_words_follow_the_rules_of_the_language():
    texts = [["我今天很高兴看书", "我今天很高兴看报"]]
    assert expected_utilities(texts, "bleu", "zh").min() > 50
    np.testing.assert_allclose(expected_utilities(texts, "bleu"), 50)  # each is like itself alone
    with pytest.raises(ConfigError, match=r"two-letter code .* got 'zh-CN'; did you mean 'zh'\?"):
        expected_utilities(texts, "bleu", "zh-CN")


def test_texts_that_are_too_long_to_compare_are_refused():
    with pytest.raises(DataError, match="has 524,289 characters or words, but at most 524,288 can be compared"):
        expected_utilities([["a" * 524_289, "a"]], "chrf")


def test_a_long_text_leaves_the_other_sentences_alone(monkeypatch):
    """They would be padded to its length, and compared at its cost."""
    shapes, compute = [], minimum_bayes_risk._expected
    monkeypatch.setattr(
        minimum_bayes_risk, "_expected", lambda utility, *own: shapes.append(own[0].shape) or compute(utility, *own)
    )
    expected_utilities([["a b", "b"], ["a" * 100, "b"]], "chrf")
    assert shapes == [(2, 16), (2, 128)]
