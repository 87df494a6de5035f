"""Words by the Moses rules, and the text restored from them."""

import pytest

from jaxformer import demo
from jaxformer.tokenizers import moses


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "He doesn't see Mr. Smith's dog (or cat).", "He doesn 't see Mr. Smith 's dog ( or cat ) ."),
        ("fr", "L'homme, qu'il n'a pas vu, dort.", "L' homme , qu' il n' a pas vu , dort ."),
        ("de", "Am 3. Mai, z.B. um 4 Uhr...", "Am 3. Mai , z.B. um 4 Uhr ..."),
        ("en", "A & B < C [D] | E", "A & B < C [ D ] | E"),
    ],
)
def test_words_of_each_language(language, text, words):
    """The rules are those of the language, no character becomes an XML entity, and detokenization restores the text."""
    assert moses.tokenize(text, language) == words
    assert moses.detokenize(words, language) == text


@pytest.mark.parametrize(("language", "side"), [("en", "english"), ("fr", "french")])
def test_detokenization_restores_the_built_in_corpus(language, side):
    for text in {getattr(pair, side) for pair in demo.generate(300)}:
        words = moses.tokenize(text, language)
        assert moses.tokenize(moses.detokenize(words, language), language) == words


def test_text_without_words():
    assert [moses.tokenize(text, "en") for text in ("", "  ", "\0")] == ["", "", ""]
    assert moses.detokenize("", "en") == ""


@pytest.mark.full
@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_detokenization_restores_the_words_of_multi30k(data_directory, language):
    """Text changes only where it is irregular, as in double spaces; its words do not."""
    lines = (data_directory / "multi30k" / f"train.{language}").read_text(encoding="utf-8").split("\n")[:6000]
    words = [moses.tokenize(line, language) for line in lines]
    texts = [moses.detokenize(line, language) for line in words]
    assert [moses.tokenize(text, language) for text in texts] == words
    assert sum(text == line.strip() for text, line in zip(texts, lines, strict=True)) > 0.99 * len(lines)
