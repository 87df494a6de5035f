"""Sentences of the built-in grammar with one word changed: a good model prefers the right one.

Minimal pairs in the manner of Linzen et al. (2016) and Marvin and Linzen (2018), for translation: the English sentence
decides which of two French ones is right.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable

from jaxformer.demo import Pair
from jaxformer.demo.lexicon import ADJECTIVES, NOUNS


@dataclasses.dataclass(frozen=True)
class Contrast:
    """A sentence, the beginning of its translation up to the word in question, and the same with wrong words."""

    probe: str
    english: str
    right: str
    wrong: tuple[str, ...]
    answer: str
    """The class of the right word, such as "feminine": always saying the most frequent one is the baseline."""
    distance: int = 0
    """Words between a noun and the adjective that agrees with it."""
    attracted: bool = False
    """True if a noun of another gender or number stands between them."""


def _features() -> dict[str, set[tuple[bool, bool]]]:
    """Returns genders and numbers, (feminine, plural), of each form of a French noun."""
    found: dict[str, set[tuple[bool, bool]]] = {}
    for noun in NOUNS:
        found.setdefault(noun.french, set()).add((noun.feminine, False))
        found.setdefault(noun.french_plural, set()).add((noun.feminine, True))
    return found


NOUN_FORMS = _features()
_FORMS = [
    {(f, p): adjective.form(feminine=f, plural=p) for f in (False, True) for p in (False, True)}
    for adjective in ADJECTIVES
]


def agreement(pair: Pair) -> Contrast | None:
    """Returns the contrast of a sentence whose last word is an adjective that agrees with its first noun.

    Wrong are the other forms of the adjective. None if the sentence is of another kind, or its adjective has one form.
    """
    if pair.construction not in ("state", "relative clause", "relative subject"):
        return None
    words = re.findall(r"[\w-]+", pair.french)
    adjective = words[-1]
    heads = [i for i, word in enumerate(words[:-1]) if word in NOUN_FORMS]
    tables = [forms for forms in _FORMS if adjective in forms.values()]
    if not heads or not tables:
        return None
    head = NOUN_FORMS[words[heads[0]]]
    fits = [forms for forms in tables if any(forms[of] == adjective for of in head)]
    if not fits:  # the first noun is also another word
        return None
    wrong = sorted(set(fits[0].values()) - {adjective})
    others = [NOUN_FORMS[words[i]] for i in heads[1:]]
    start = pair.french[: pair.french.rindex(adjective)]
    rest = pair.french[len(start) + len(adjective) :]
    if not wrong:
        return None
    return Contrast(
        "adjective",
        pair.english,
        pair.french,
        tuple(f"{start}{form}{rest}" for form in wrong),
        adjective,
        len(words) - heads[0] - 2,
        any(not features & head for features in others),
    )


def it_as_object(pair: Pair) -> Contrast | None:
    """Returns the contrast of "The girl finds the watch and hides it.": the gender of "la", "le" or a participle."""
    if pair.construction != "object pronoun":
        return None
    if found := re.search(r" (le|la) (\w+)\.$", pair.french):
        right, verb = found.groups()
        start, wrong = pair.french[: found.start()], "la" if right == "le" else "le"
        gender = "feminine" if right == "la" else "masculine"
        return Contrast("it, object", pair.english, pair.french, (f"{start} {wrong} {verb}.",), gender)
    if found := re.search(r" l'(?:ai|as?|avons|avez|ont) (\w+)\.$", pair.french):
        feminine = found[1].endswith("e")
        other = found[1][:-1] if feminine else f"{found[1]}e"
        start = pair.french[: found.start(1)]
        gender = "feminine" if feminine else "masculine"
        return Contrast("it, object", pair.english, pair.french, (f"{start}{other}.",), gender)
    return None


def it_as_subject(pair: Pair) -> Contrast | None:
    """Returns the contrast of "I love this house because it is old.": "elle" or "il", before the adjective."""
    found = re.search(r"(parce qu'|mais )(ils?|elles?) (\w+)", pair.french)
    if pair.construction != "because" or not found:
        return None
    link, right, verb = found.groups()
    feminine = right.startswith("elle")
    other = right.replace("elle", "il") if feminine else right.replace("il", "elle")
    start = pair.french[: found.start()] + link
    gender = "feminine" if feminine else "masculine"
    return Contrast("it, subject", pair.english, f"{start}{right} {verb}", (f"{start}{other} {verb}",), gender)


_KNOW = dict(
    zip(
        "connais connaît connaissons connaissez connaissent".split()
        + "connaissais connaissait connaissions connaissiez connaissaient".split(),
        "sais sait savons savez savent savais savait savions saviez savaient".split(),
        strict=True,
    )
)
_WORDS = {
    "bank": [("à la banque", "sur la rive"), ("sur la rive", "à la banque")],
    "spring": [
        ("au printemps", "à la source", "au ressort"),
        ("de la source", "du printemps", "du ressort"),
        ("Le ressort", "Le printemps", "La source"),
    ],
    "know": [*_KNOW.items(), *((b, a) for a, b in _KNOW.items())],
}


def word(pair: Pair) -> Contrast | None:
    """Returns the contrast of "bank", "spring" or "know": up to the phrase that translates it."""
    for right, *wrong in _WORDS.get(pair.construction, ()):
        if found := re.search(rf"(?<!\w){right}(?!\w)", pair.french):
            start, answer = pair.french[: found.start()], right.split()[-1]
            if pair.construction == "know":
                answer = "savoir" if answer in _KNOW.values() else "connaître"
            beginnings = tuple(start + other for other in wrong)
            return Contrast(pair.construction, pair.english, start + right, beginnings, answer)
    return None


AMBIGUITIES: tuple[Callable[[Pair], Contrast | None], ...] = (it_as_object, it_as_subject, word)


def contrasts(pairs: Iterable[Pair], *makers: Callable[[Pair], Contrast | None]) -> list[Contrast]:
    """Returns the contrasts that these functions find in the pairs."""
    return [found for pair in pairs for make in makers if (found := make(pair))]
