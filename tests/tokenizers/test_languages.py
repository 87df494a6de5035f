"""Codes of languages: a wrong one is refused everywhere, because it would select the rules of another language."""

import functools

import pytest

from jaxformer.errors import ConfigError
from jaxformer.tokenizers import moses
from jaxformer.tokenizers.languages import CODES, UNSPACED, check_language
from jaxformer.tokenizers.normalization import TextNormalizer


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
