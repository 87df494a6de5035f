"""Scores equal those of sacrebleu's own command, and describe how they were computed."""

import dataclasses
import functools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab

from jaxformer.errors import ConfigError
from jaxformer.evaluation.scores import (
    Score,
    accuracy,
    bits_per_character,
    bleu,
    bleu_words,
    chrf,
    matthews,
    moses_bleu,
    nats_per_token,
    paired_bootstrap,
    perplexity,
    rouge,
    rouge_words,
    sentence_rouge,
    sentence_scores,
)
from jaxformer.tokenizers import moses

HYPOTHESES = ["The cat sat on the mat.", "He's reading a book!", "Two dogs ran across the green field , quickly."]
REFERENCES = ["The cat sits on the mat.", "He is reading a book!", "Two dogs ran over the green field, quickly."]


@pytest.mark.parametrize(("metric", "score"), [("bleu", bleu), ("chrf", chrf)])
def test_scores_equal_those_of_the_command(tmp_path, metric, score):
    (tmp_path / "hyp").write_text("\n".join(HYPOTHESES) + "\n")
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-m", metric, "--score-only", "--width", "2"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert score(HYPOTHESES, REFERENCES).value == pytest.approx(float(printed), abs=0.005)


def test_rouge_equals_counts_by_hand():
    """7 and 6 words share "the", "sat" and "mat" in this order, and no pair; words that repeat count."""
    hypotheses, references = ["The cat sat on the mat, mat!", "", "the"], ["A dog, THE dog sat: mat?", "a", "the the"]
    rows = sentence_rouge(hypotheses, references)
    assert [row["rouge1"] for row in rows] == pytest.approx([100 * 2 * 3 / (7 + 6), 0, 100 * 2 / 3])
    assert [row["rouge2"] for row in rows] == [0, 0, 0]
    assert rows[0]["rougeL"] == pytest.approx(100 * 2 * 3 / 13)
    assert sentence_rouge(["c b a x"], ["a b c x"])[0] == pytest.approx({"rouge1": 100, "rouge2": 0, "rougeL": 50})
    scores = rouge(hypotheses, references)
    assert [score.value for score in scores] == pytest.approx([np.mean([row[n] for row in rows]) for n in rows[0]])
    assert str(scores[2]) == "ROUGE-L 37.61  [mean F1 of 3 texts, lower-cased words without stemming]"
    assert rouge(["你好"], ["你们"], language="zh")[0].value == 50


def test_letters_keep_their_marks_in_rouge():
    """Other vowels and accents are other words; a letter and its accent may be one character or two."""
    for said, meant, language in (("दिन", "दीन", "hi"), ("กิน", "กัน", "th"), ("pe\u0302che", "pe\u0301che\u0301", "fr")):
        assert sentence_rouge([said], [meant], language=language)[0]["rougeL"] < 100
    assert rouge_words("E\u0301COLE") == rouge_words("école") == ["école"]


@pytest.mark.parity
def test_rouge_equals_rouge_score():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2", "rougeL"])
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(["a", "It's", "x_1", "--", "Dog.", "to"], draw.integers(0, 9))) for _ in range(200)]
    hypotheses, references = texts[::2] + HYPOTHESES, texts[1::2] + REFERENCES
    for found, said, meant in zip(sentence_rouge(hypotheses, references), hypotheses, references, strict=True):
        expected = scorer.score(meant, said)
        assert found == pytest.approx({name: 100 * score.fmeasure for name, score in expected.items()}), (said, meant)


def test_the_paired_test_equals_that_of_the_command(tmp_path, monkeypatch):
    """Scores and p-value of a system with every second sentence right, against a baseline with every third."""
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    references = [f"The {animal} number {i} sits on the mat." for i in range(20) for animal in ("cat", "dog")]
    baseline = [text if i % 3 == 0 else text.replace("sits on", "sat at") for i, text in enumerate(references)]
    system = [text if i % 2 == 0 else text.replace("sits on", "sat at") for i, text in enumerate(references)]
    for name, lines in (("ref", references), ("a", baseline), ("b", system)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "a", "b", "-m", "bleu", "--paired-bs", "-f", "json"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    first, second = (row["BLEU"] for row in json.loads(printed))
    found = paired_bootstrap(baseline, system, references)
    assert (found.baseline.value, found.system.value) == pytest.approx((first["score"], second["score"]))
    assert found.p_value == pytest.approx(second["p_value"])
    assert 0.001 < found.p_value < 0.5
    assert "bs:1000" in found.system.signature
    assert paired_bootstrap(system, system, references).p_value == 1.0


def test_sentences_have_their_own_scores():
    """A short correct sentence has 100; its corpus score over four words would be 0."""
    right, half, wrong = sentence_scores(["un chien", "un chat noir", "x"], ["un chien", "un chien noir", "y z"])
    assert right == {"bleu": 100.0, "chrf": 100.0}
    assert 0 < half["bleu"] < 100
    assert wrong == {"bleu": 0.0, "chrf": 0.0}
    assert bleu(["a b", "c d"], ["a b", ""]).value == 0  # an empty reference is one


def test_words_follow_the_rules_of_the_language(monkeypatch):
    """13a reads a Chinese sentence as one word, and the scores of other languages do not change."""
    said, meant = ["我今天很高兴看书"], ["我今天很高兴看报"]
    assert 50 < bleu(said, meant, language="zh").value < 100
    assert "tok:zh" in bleu(said, meant, language="zh").signature
    assert bleu(said, meant).value == 0
    assert sentence_scores(said, meant, language="zh")[0]["bleu"] > sentence_scores(said, meant)[0]["bleu"]
    assert bleu(HYPOTHESES, REFERENCES, language="de") == bleu(HYPOTHESES, REFERENCES)
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(ConfigError, match=r"BLEU of ja needs .* pip install 'sacrebleu\[ja\]'"):
        bleu(said, meant, language="ja")


def test_a_language_without_spaces_is_compared_by_characters():
    """13a reads a Thai sentence as one word, and so do the rules of Moses, which also read a Chinese one so."""
    said, meant = ["ฉันมีความสุขมากที่ได้อ่านหนังสือ"], ["ฉันมีความสุขมากที่ได้อ่านข่าว"]
    assert bleu(said, meant).value == 0
    assert 50 < bleu(said, meant, language="th").value < 100
    assert "tok:char" in bleu(said, meant, language="th").signature


def test_signatures_describe_the_computation():
    assert "case:mixed" in bleu(HYPOTHESES, REFERENCES).signature
    assert "tok:13a" in bleu(HYPOTHESES, REFERENCES).signature
    assert "case:lc" in bleu(HYPOTHESES, REFERENCES, lowercase=True).signature
    found = moses_bleu(HYPOTHESES, REFERENCES, language="en")
    assert "lower-cased, sacremoses" in found.signature
    assert "tok:none" in found.signature
    assert str(found).startswith("BLEU (lower-cased Moses)")


def test_moses_bleu_ignores_case_and_spacing_of_punctuation():
    """Moses splits punctuation off, so a space before a comma costs nothing."""
    assert moses_bleu(["Two Dogs ran , quickly."], ["two dogs ran, quickly ."], language="en").value == pytest.approx(
        100
    )
    assert bleu(["Two Dogs ran , quickly."], ["two dogs ran, quickly ."]).value < 100


def test_scores_without_case():
    """The signatures tell it, and references are lowercased."""
    said, right = ["two dogs ran quickly ."], ["Two DOGS ran quickly ."]
    for score in (bleu, chrf):
        found = score(said, right, lowercase=True)
        assert found.value == pytest.approx(100)
        assert "case:lc" in found.signature
        assert found.name.endswith("(lower-cased)")
        assert score(said, right).value < 100
    assert sentence_scores(said, right, lowercase=True) == [{"bleu": 100.0, "chrf": 100.0}]
    assert sentence_scores(said, right)[0]["bleu"] < 100


def test_words_of_a_system_are_compared_unchanged():
    """A system that writes a word as two is wrong, even if detokenization joins them."""
    right = ["Five dogs can't run."]
    texts, words = ["five dogs can't run."], ["five dogs ca n't run ."]
    assert moses_bleu(texts, right, language="en").value == pytest.approx(100)
    found = moses_bleu(texts, right, language="en", words=words)
    assert found.value < 100
    assert "hypotheses as words of the system" in found.signature
    assert moses_bleu(texts, right, language="en", words=["Five dogs can 't run ."]).value == pytest.approx(100)


def test_words_of_cased_text_are_compared_with_references_split_alike():
    """A capital begins the second sentence, so the rules split off the period before it, but not before a small one."""
    right = ["The dog runs. It barks at a man."]
    words = ["The dog runs . It barks at a man ."]
    assert [moses.tokenize(text, "en") for text in right] == words
    found = moses_bleu(right, right, language="en", words=words, cased=True)
    assert found.value == pytest.approx(100)
    assert "hypotheses as cased words of the system" in found.signature
    small = [moses.tokenize(right[0].lower(), "en")]
    assert small != [words[0].lower()]
    assert moses_bleu(right, right, language="en", words=small).value == pytest.approx(100)


def test_scores_of_a_language_model():
    """A uniform model over V tokens has perplexity V; bits per character do not depend on the tokenizer."""
    total, count = 50 * math.log(8), 50
    assert perplexity(total, count).value == pytest.approx(8)
    assert nats_per_token(total, count).value == pytest.approx(math.log(8))
    assert bits_per_character(total, 150).value == pytest.approx(1)
    assert str(perplexity(total, count)) == "perplexity 8.00  [exp of -log p, mean of 50 tokens]"
    assert str(nats_per_token(total, count)).startswith("nats per token 2.0794  [")
    assert perplexity(1e6, 1).value == math.inf
    assert math.isnan(perplexity(math.nan, 1).value)


def test_a_score_is_plain_data():
    assert dataclasses.asdict(Score("BLEU", 12.345, "by hand"))["value"] == 12.345
    assert str(Score("BLEU", 12.345, "by hand")) == "BLEU 12.35  [by hand]"


ONE_HOT = np.eye(2, dtype=int)
REFUSED = [
    (lambda: bleu(HYPOTHESES[:2], REFERENCES), "2 hypotheses, but 3 references"),
    (lambda: paired_bootstrap(HYPOTHESES, HYPOTHESES[:2], REFERENCES), "2 hypotheses, but 3 references"),
    (lambda: bleu(["a b", "c d"], [["a b"], []]), "needs at least one reference, but number 2 has none"),
    (lambda: bleu(["a b", "c d"], [[], []]), "needs at least one reference, but number 1 has none"),
    (lambda: chrf([], []), "at least one sentence"),
    (lambda: perplexity(1.0, 0), "at least one token or character, got 0"),
    (lambda: nats_per_token(1.0, 0), "at least one token or character, got 0"),
    (lambda: bits_per_character(1.0, 0), "at least one token or character, got 0"),
    (lambda: accuracy(0, 0), "at least one prediction, got 0"),
    (lambda: matthews([0, 1], [0]), "each label needs a prediction"),
    (lambda: matthews(ONE_HOT, ONE_HOT), "each label needs a prediction"),
]
for _language in ("zh-CN", "EN", "german"):  # 13a was taken for zh-CN, and other rules than those of en for EN
    _code = f"two-letter code .* got '{_language}'"
    REFUSED += [
        (functools.partial(bleu, REFERENCES, REFERENCES, language=_language), _code),
        (functools.partial(moses_bleu, REFERENCES, REFERENCES, language=_language), _code),
        (functools.partial(paired_bootstrap, REFERENCES, REFERENCES, REFERENCES, language=_language), _code),
        (functools.partial(sentence_scores, REFERENCES, REFERENCES, language=_language), _code),
        (functools.partial(bleu_words, "a", _language), _code),
    ]
for _language in ("th", "zh", "ja"):
    _spaces = f"needs words between spaces, and {_language} has none"
    REFUSED.append((functools.partial(moses_bleu, REFERENCES, REFERENCES, language=_language), _spaces))


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("classes", [2, 5])
def test_matthews_is_a_correlation(classes):
    """Of two classes, Pearson's of the numbers; of several, that of indicator variables summed over classes."""
    random = np.random.default_rng(0)
    labels = random.integers(classes, size=400)
    predictions = np.where(random.random(400) < 0.4, labels, random.integers(classes, size=400))
    one_hot = lambda x: np.eye(classes)[x] - np.eye(classes)[x].mean(0)
    a, b = one_hot(labels), one_hot(predictions)
    expected = (a * b).sum() / ((a * a).sum() * (b * b).sum()) ** 0.5
    assert matthews(labels, predictions).value == pytest.approx(100 * expected)
    if classes == 2:
        assert matthews(labels, predictions).value == pytest.approx(100 * np.corrcoef(labels, predictions)[0, 1])
        assert matthews(labels, 1 - predictions).value == pytest.approx(-100 * expected)


def test_simple_classifications():
    assert accuracy(1, 8).value == 12.5
    assert matthews([0, 1, 1], [1, 1, 1]).value == 0.0  # a constant prediction
