"""Languages by their codes, and words by the rules of Moses (Koehn et al. 2007), with sacremoses.

Importing this imports no library: settings have languages.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    import sacremoses

CODES = frozenset(
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo "
    "es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka "
    "kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng "
    "nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su "
    "sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu".split()
)
"""The two-letter codes of ISO 639-1."""

UNSPACED = frozenset("bo dz ja km lo my th zh".split())
"""The languages that are written without spaces between words."""


_SAME = {
    pair[:3]: pair[4:]
    for pair in (
        "asm:as ben:bn bod:bo cat:ca ces:cs deu:de dzo:dz ell:el eng:en est:et fin:fi fra:fr gle:ga guj:gu hin:hi "
        "hun:hu isl:is ita:it jpn:ja kan:kn khm:km kor:ko lao:lo lit:lt lvs:lv mal:ml mar:mr mya:my nld:nl ory:or "
        "pan:pa pol:pl por:pt ron:ro rus:ru slk:sk slv:sl spa:es swe:sv tam:ta tel:te tha:th yue:zh zho:zh"
    ).split()
}


def two_letters(code: str) -> str:
    """Returns the two-letter code of a language with rules of its own, from the code of a multilingual model.

    It is empty for other languages, whose words have the rules of none. Other texts stay as they are.

    >>> two_letters("de"), two_letters("de_DE"), two_letters("deu_Latn"), two_letters("ace_Latn")
    ('de', 'de', 'de', '')
    """
    main = code.partition("_")[0]
    if not (main.isalpha() and main.islower()):
        return code
    return main if main in CODES else _SAME.get(main, "")


def check_language(code: str, name: str = "language") -> None:
    """Checks the code of a language: any other text would select the rules of another language, without a sign of it.

    Raises:
      ConfigError: the code is not in `CODES`; the message has `name`.

    >>> check_language("zh")
    """
    if code not in CODES:
        near = code[:2].lower()
        hint = f"; did you mean {near!r}?" * (near in CODES and code[2:3] in ("", "-", "_"))
        raise ConfigError(f"{name} must be a two-letter code of ISO 639-1, such as en or zh, got {code!r}{hint}")


@functools.cache
def version() -> str:
    """Returns the version of sacremoses, which words depend on."""
    import sacremoses

    return sacremoses.__version__


def tokenize(text: str, language: str) -> str:
    """Returns the words of a text, separated by spaces; control characters are removed.

    Args:
      language: the two-letter code that selects the rules.

    Raises:
      ConfigError: `language` is not a two-letter code (ISO 639-1).

    >>> tokenize("It's a dog, isn't it?", "en")
    "It 's a dog , isn 't it ?"
    """
    return " ".join(_rules(language)[0].tokenize(text, escape=False))


def detokenize(text: str, language: str) -> str:
    """Returns the text of space-separated words.

    Raises:
      ConfigError: see `tokenize`.

    >>> detokenize("It 's a dog , isn 't it ?", "en")
    "It's a dog, isn't it?"
    """
    return _rules(language)[1].detokenize(text.split(), unescape=False)


@functools.cache
def _rules(language: str) -> tuple[sacremoses.MosesTokenizer, sacremoses.MosesDetokenizer]:
    check_language(language)
    import sacremoses

    return sacremoses.MosesTokenizer(lang=language), sacremoses.MosesDetokenizer(lang=language)
