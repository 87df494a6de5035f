"""Noun phrases, verb forms, and the joining of words into text: agreement, word order, elision, contraction."""

from __future__ import annotations

import dataclasses
import random
import re

from jaxformer.data.grammar.lexicon import (
    ADJECTIVES,
    BE,
    HAVE,
    NOUNS,
    NUMBERS,
    Adjective,
    Noun,
    Verb,
    begins_with_vowel,
)

Words = tuple[str, ...]

ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "je": "j'", "que": "qu'", "se": "s'", "me": "m'"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
POSSESSIVES = {  # English: masculine, feminine, plural; feminine before a vowel takes the masculine form
    "my": ("mon", "ma", "mes"), "his": ("son", "sa", "ses"), "her": ("son", "sa", "ses"),
    "our": ("notre", "notre", "nos"), "your": ("votre", "votre", "vos"), "their": ("leur", "leur", "leurs"),
}  # fmt: skip
SUITS = {  # adjective kinds that go with noun kinds
    "person": ("size", "age", "mood", "origin"), "animal": ("size", "age", "colour"),
    "building": ("size", "age", "look", "origin", "colour"), "place": ("size", "age", "look"),
    "vehicle": ("size", "age", "colour", "origin"), "text": ("worth", "origin", "age"),
    "food": ("size", "worth", "colour"), "clothes": ("colour", "age", "look", "origin"), "thing": ("size", "colour", "age", "look"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Phrase:
    """A noun phrase in both languages, with what others must agree with, and the held-out pairs it uses."""

    english: Words
    french: Words
    feminine: bool
    plural: bool
    person: int = 3
    pairs: tuple[tuple[str, str], ...] = ()


PRONOUNS = {
    "I": Phrase(("I",), ("je",), False, False, 1),
    "we": Phrase(("we",), ("nous",), False, True, 1),
    "you": Phrase(("you",), ("vous",), False, True, 2),
    "he": Phrase(("he",), ("il",), False, False),
    "she": Phrase(("she",), ("elle",), True, False),
    "they": Phrase(("they",), ("ils",), False, True),
}


def nouns_of(kind: str) -> list[Noun]:
    """Nouns that can stand where a verb wants this kind."""
    wanted = {"any": {"person", "animal", "thing", "building"}, "being": {"person", "animal"}}.get(kind, {kind})
    return [noun for noun in NOUNS if noun.kinds & wanted]


def adjectives_for(noun: Noun) -> list[Adjective]:
    """Adjectives that make sense of a noun."""
    kind = next(kind for kind in SUITS if kind in noun.kinds)
    return [a for a in ADJECTIVES if a.kind in SUITS[kind] and not (a.english == "young" and kind not in ("person", "animal"))
            and not (a.english == "new" and kind in ("person", "animal"))]  # fmt: skip


def noun_phrase(
    pick: random.Random, noun: Noun, *, determiner: str = "", adjectives: int = -1, plural: bool | None = None
) -> Phrase:
    """A determiner, up to two adjectives and a noun.

    Args:
      determiner: "the", "a", "this", a possessive, a number, or "" for any of them.
      adjectives: how many, -1 for any number.
    """
    plural = pick.random() < 0.3 if plural is None else plural
    determiner = determiner or pick.choice(
        ["the"] * 5
        + ["a", "this", "my", "his", "her", "our", "your", "their"]
        + ([pick.choice(list(NUMBERS))] * 2 if plural else [])
    )
    if determiner == "a" and plural:
        determiner = "the"
    plural = plural or determiner in NUMBERS
    count = pick.choice((0, 0, 0, 1, 1, 1, 2)) if adjectives < 0 else adjectives
    chosen = _choose_adjectives(pick, noun, count)
    before = [a for a in chosen if a.before]
    after = [a for a in chosen if not a.before]
    word = noun.french_plural if plural else noun.french
    shown = [a.form(feminine=noun.feminine, plural=plural) for a in before]
    if before and not plural and not noun.feminine and begins_with_vowel(word):
        shown[-1] = before[-1].liaison
    french = [*shown, word, *(a.form(feminine=noun.feminine, plural=plural) for a in reversed(after))]
    english = [*(a.english for a in chosen), noun.english_plural if plural else noun.english]
    return Phrase(
        (*_english_determiner(determiner, english[0], plural), *english),
        (*_french_determiner(determiner, french[0], noun.feminine, plural), *french),
        noun.feminine,
        plural,
        pairs=tuple((a.english, noun.english) for a in chosen),
    )


def _choose_adjectives(pick: random.Random, noun: Noun, count: int) -> list[Adjective]:
    """In English order: size, look or age first, then colour, then origin; French mirrors what follows the noun."""
    order = ("worth", "look", "size", "age", "mood", "state", "colour", "origin")
    chosen: list[Adjective] = []
    for _ in range(count):
        kinds = {a.kind for a in chosen}
        front = any(a.before for a in chosen)
        fit = [a for a in adjectives_for(noun) if a.kind not in kinds and not (front and a.before)]
        if fit:
            chosen.append(pick.choice(fit))
    return sorted(chosen, key=lambda a: order.index(a.kind))


def _english_determiner(determiner: str, following: str, plural: bool) -> Words:
    if determiner == "a":
        return ("an" if following[0].lower() in "aeiou" else "a",)
    return ("these",) if determiner == "this" and plural else (determiner,)


def _french_determiner(determiner: str, following: str, feminine: bool, plural: bool) -> Words:
    vowel = begins_with_vowel(following)
    if determiner in NUMBERS:
        return (NUMBERS[determiner],)
    if determiner in POSSESSIVES:
        masculine, fem, many = POSSESSIVES[determiner]
        return (many if plural else fem if feminine and not vowel else masculine,)
    if determiner == "this":
        return ("ces" if plural else "cette" if feminine else "cet" if vowel else "ce",)
    if determiner == "a":
        return ("une" if feminine else "un",)
    return ("les" if plural else "la" if feminine else "le",)


def both(first: Phrase, second: Phrase) -> Phrase:
    """Two phrases joined by "and": plural, feminine only if both are."""
    return Phrase(
        (*first.english, "and", *second.english),
        (*first.french, "et", *second.french),
        first.feminine and second.feminine,
        True,
        pairs=first.pairs + second.pairs,
    )


def draw_tense(pick: random.Random, subject: Phrase, tenses: tuple[str, ...], *verbs: Verb) -> str:
    """A tense; the past where the present would look like it ("they read"), so that a sentence means one thing."""
    tense = pick.choice(tenses)
    singular = subject.person == 3 and not subject.plural
    same = any(verb.english[0] == verb.english[2] for verb in verbs)
    return "past" if tense == "present" and same and not singular else tense


def english_verb(verb: Verb, subject: Phrase, tense: str, *, negative: bool = False) -> Words:
    """The English verb group: present, past, progressive past, future."""
    base, third, past, _, ing = verb.english
    singular = subject.person == 3 and not subject.plural
    if tense == "future":
        return ("will", *(["not"] if negative else []), base)
    if tense == "progressive":
        was = "were" if subject.plural else "was"
        return (was, *(["not"] if negative else []), ing)
    if negative:
        return ("did" if tense == "past" else "does" if singular else "do", "not", base)
    return (past,) if tense == "past" else (third if singular else base,)


def french_verb(
    verb: Verb,
    subject: Phrase,
    tense: str,
    *,
    negation: str = "",
    clitic: Words = (),
    etre: bool = False,
    agree: str = "",
) -> Words:
    """The French verb group with its object pronoun and negation around it.

    Args:
      negation: "", or what follows the verb: "pas", "jamais", "plus".
      clitic: an object pronoun, which stands before the verb.
      etre: the compound past is made with être and agrees with the subject.
      agree: ending of a participle that agrees with an object pronoun before it.
    """
    index = _person(subject)
    rest: Words = ()
    if tense == "past":
        finite = (BE if etre else HAVE).present[index]
        ending = ("e" if subject.feminine else "") + ("s" if subject.plural else "") if etre else agree
        rest = (_agreeing(verb.participle, ending),)
    elif tense == "present":
        finite = verb.present[index]
    elif tense == "future":
        finite = verb.future + ("ai", "a", "ons", "ez", "ont")[index]
    else:
        stem = verb.imperfect
        finite = stem + ("ais", "ait", "ions", "iez", "aient")[index]
        if index in (2, 3) and stem.endswith("ge"):
            finite = stem[:-1] + ("ions", "iez")[index - 2]
    return (*(("ne",) if negation else ()), *clitic, finite, *((negation,) if negation else ()), *rest)


def _person(subject: Phrase) -> int:
    if subject.person == 3:
        return 4 if subject.plural else 1
    return (2 if subject.plural else 0) if subject.person == 1 else 3


def _agreeing(participle: str, ending: str) -> str:
    return participle if ending == "s" and participle.endswith("s") else participle + ending


def english_text(words: Words, end: str = ".") -> str:
    """Words to a sentence."""
    text = " ".join(words) + end
    return text[0].upper() + text[1:]


def french_text(words: Words, end: str = ".") -> str:
    """Words to a sentence: elision first (``l'ami``), then contraction (``du``), then a capital."""
    done: list[str] = []
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else ""
        if word in ELIDED and following and begins_with_vowel(following):
            word = ELIDED[word]
        if done and (done[-1], word) in CONTRACTED:
            done[-1] = CONTRACTED[done[-1], word]
        else:
            done.append(word)
    text = re.sub(r"' ", "'", " ".join(done)) + (f" {end}" if end in "?!" else end)
    return text[0].upper() + text[1:]
