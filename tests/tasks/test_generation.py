"""Limits of the vocabulary, and expected utilities against sacrebleu; ensembles are tested with each predictor."""

import math
import types

import numpy as np
import pytest
import sacrebleu

from jaxformer import demo
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import generation
from jaxformer.tasks.config import Beam, MinimumRisk, Sample, SearchConfig
from jaxformer.tasks.generation import TextPredictor, _expected, expected_utilities, limits_of, ranked
from jaxformer.tasks.search import Candidate
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.subwords import SubwordTokenizer


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_forbidden_words_in_any_segmentation(kind):
    """After a space or not; each sequence spells the word, and every sampled segmentation is among them."""
    tokenizer = SubwordTokenizer.train([p.english for p in demo.generate(300)], vocab_size=380, kind=kind)
    found = set(limits_of(SearchConfig(forbid="house, old man"), tokenizer).sequences)
    assert {tokenizer.decode(ids) for ids in found} == {"house", " house", "old man", " old man"}
    alpha = 0.1 if kind == "unigram" else 0.5
    drawn = {tuple(tokenizer.sample([" house"], seed=seed, alpha=alpha)[0].tolist()) for seed in range(50)}
    assert len(drawn) > 1
    assert drawn <= found
    with pytest.raises(ConfigError, match=r"can be segmented in more than 4,096 ways"):
        limits_of(SearchConfig(forbid="the old man sees the house and the sea " * 3), tokenizer)


def test_the_pieces_of_a_shortlist(tmp_path, monkeypatch):
    tokenizer = SubwordTokenizer.train([p.english for p in demo.generate(300)], vocab_size=380)
    (tmp_path / "words").write_text("house man\n")
    allowed = limits_of(SearchConfig(shortlist=str(tmp_path / "words")), tokenizer).allowed
    pieces = {int(t) for text in ("house", " house", "man", " man") for t in tokenizer.encode([text])[0]}
    assert set(allowed) == pieces | {tokenizer.special.eos}
    monkeypatch.setenv("HOME", str(tmp_path))
    assert limits_of(SearchConfig(shortlist="~/words"), tokenizer).allowed == allowed
    assert limits_of(SearchConfig(), tokenizer) == ((), (), ())


def test_limits_are_of_the_text_that_a_tokenizer_sees(tmp_path):
    """In lower case and of Moses words, and after a space, too."""
    normalizer = TextNormalizer(True, "moses", "en", "fr")
    lines = normalizer([p.french for p in demo.generate(300)], "target")
    tokenizer = SubwordTokenizer.train(lines, vocab_size=380, normalizer=normalizer)
    (tmp_path / "words").write_text("L'HOMME\n")
    decode = SearchConfig(forbid="L'HOMME", shortlist=str(tmp_path / "words"))
    limits = limits_of(decode, tokenizer)
    assert {tokenizer.normalized(ids) for ids in limits.sequences} == {"l' homme", " l' homme"}
    pieces = {int(t) for ids in tokenizer.encode_normalized(["l' homme", " l' homme"]) for t in ids}
    assert set(limits.allowed) == pieces | {tokenizer.special.eos}


def test_empty_slots_of_a_beam_are_left_out():
    """Only as many texts as exist; the first stays, so that each input has one."""
    predictor = types.SimpleNamespace(decode=SearchConfig())
    scores = [[-1.0, -2.0, -math.inf], [-1.0, -2.0, -3.0], [-math.inf, -math.inf, -math.inf]]
    found = [[Candidate("a", score, ()) for score in own] for own in scores]
    best = TextPredictor._ranked(predictor, found, 3)
    assert [[one.score for one in own] for own in best] == [[-1.0, -2.0], [-1.0, -2.0, -3.0], [-math.inf]]
    assert [len(own) for own in TextPredictor._ranked(predictor, found, 1)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("search", "number", "message"),
    [
        (Beam(beam_size=2**27), 2**27, r"^the beam's size times the vocabulary must be below 2.*, got 134217728 x 16$"),
        (Sample(), 2**30, r"^the number of texts times the vocabulary .*, got 1073741824 x 16$"),
    ],
)
def test_more_scores_than_can_be_numbered(search, number, message):
    predictor = types.SimpleNamespace(placement=None, tokenizer=types.SimpleNamespace(vocab_size=16))
    with pytest.raises(ConfigError, match=message):
        TextPredictor._hypotheses(predictor, SearchConfig(search=search), None, number=number, max_length=2)


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
    assert np.std(found, 1).min() > 0.1


def test_candidates_are_ranked_by_their_expected_utilities():
    own = ranked([[Candidate(text, 0.0, ()) for text in TEXTS[0]]], "chrf")[0]
    (utilities,) = expected_utilities(TEXTS[:1], "chrf")
    assert [(one.text, one.score) for one in own] == [(TEXTS[0][i], utilities[i]) for i in np.argsort(-utilities)]


def test_empty_slots_are_no_candidates_of_minimum_risk():
    """Their text, such as an empty one, is no reference and is not chosen."""
    found = [[Candidate(text, -1.0, ()) for text in TEXTS[0]], [Candidate("a b", -1.0, ())]]
    slots = [Candidate("", -math.inf, ())] * 5
    predictor = types.SimpleNamespace(decode=SearchConfig(search=MinimumRisk(num_candidates=8)), language="en")
    best = TextPredictor._ranked(predictor, [[*own, *slots] for own in found], 8)
    assert best == ranked(found, "chrf")
    (empty,) = TextPredictor._ranked(predictor, [slots], 8)
    assert [one.text for one in empty] == [""]


def test_one_program_serves_any_number_of_sentences():
    expected_utilities(TEXTS, "bleu")
    before = _expected._cache_size()
    np.testing.assert_array_equal(expected_utilities(TEXTS[1:], "bleu"), expected_utilities(TEXTS, "bleu")[1:])
    assert _expected._cache_size() == before


def test_words_follow_the_rules_of_the_language():
    texts = [["我今天很高兴看书", "我今天很高兴看报"]]
    assert np.min(expected_utilities(texts, "bleu", "zh")) > 50
    np.testing.assert_allclose(expected_utilities(texts, "bleu"), 50)  # each is like itself alone
    with pytest.raises(ConfigError, match=r"two-letter code .* got 'zh-CN'; did you mean 'zh'\?"):
        expected_utilities(texts, "bleu", "zh-CN")


def test_texts_that_are_too_long_to_compare_are_refused():
    with pytest.raises(DataError, match="has 524,289 characters or words, but at most 524,288 can be compared"):
        expected_utilities([["a" * 524_289, "a"]], "chrf")


def test_a_long_text_leaves_the_other_sentences_alone(monkeypatch):
    """They would be padded to its length, and compared at its cost."""
    shapes, compute = [], generation._expected
    monkeypatch.setattr(
        generation, "_expected", lambda utility, *own: shapes.append(own[0].shape) or compute(utility, *own)
    )
    expected_utilities([["a b", "b"], ["a" * 100, "b"]], "chrf")
    assert shapes == [(2, 16), (2, 128)]
