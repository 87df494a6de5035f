"""Words by the Moses rules, and the text restored from them; a wrong code of a language is refused everywhere."""

import functools

import pytest

from jaxformer import demo
from jaxformer.errors import ConfigError
from jaxformer.tokenizers import moses
from jaxformer.tokenizers.moses import CODES, UNSPACED, check_language
from jaxformer.tokenizers.normalization import TextNormalizer


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


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("zh-CN", "; did you mean 'zh'?"),
        ("pt_BR", "; did you mean 'pt'?"),
        ("EN", "; did you mean 'en'?"),
        ("german", ""),
        ("jp", ""),
        ("cz", ""),
        ("zho", ""),
        ("en ", ""),
        ("", ""),
    ],
)
def test_other_codes_are_refused(code, hint):
    with pytest.raises(ConfigError) as raised:
        check_language(code, "target_language")
    expected = f"target_language must be a two-letter code of ISO 639-1, such as en or zh, got {code!r}{hint}"
    assert str(raised.value) == expected


def test_known_codes():
    """Languages with rules of their own in sacremoses are among them."""
    assert len(CODES) == 183
    assert UNSPACED < CODES
    for code in "ca cs de el en es et fi fr ga hu is it lt lv nl pl pt ro ru sk sl sv ta zh ja ko".split():
        check_language(code)


def test_words_have_rules_for_a_known_language_only():
    """Other texts had the rules of Moses for all languages, without the abbreviations of any."""
    for code in ("EN", "german", ""):
        normalizer = TextNormalizer(pretokenize="moses", source_language=code, target_language="en")
        by_side = functools.partial(normalizer, side="source")
        for call in (moses.tokenize, moses.detokenize, lambda text, code, by_side=by_side: by_side([text])):
            with pytest.raises(ConfigError, match="two-letter code"):
                call("Mr. Li", code)
