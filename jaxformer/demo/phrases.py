"""Noun phrases, and the joining of words into text: agreement, word order, elision, contraction."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence, Set

from jaxformer.demo.alignment import Part, Word, Words, said, tie
from jaxformer.demo.lexicon import ADJECTIVES, NOUNS, NUMBERS, Adjective, Noun, begins_with_vowel
from jaxformer.demo.verbs import Verb

ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "je": "j'", "que": "qu'", "me": "m'", "ce": "c'"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
POSSESSIVES = {  # English: masculine, feminine, plural; feminine before a vowel takes the masculine form
    "my": ("mon", "ma", "mes"), "his": ("son", "sa", "ses"), "her": ("son", "sa", "ses"),
    "our": ("notre", "notre", "nos"), "your": ("votre", "votre", "vos"), "their": ("leur", "leur", "leurs"),
}  # fmt: skip
CLASHES = {
    "open": ("open", "closed"),
    "close": ("open", "closed"),
    "break": ("broken",),
    "clean": ("clean",),
    "wear": ("heavy", "light"),
}
ORDER = ("look", "mood", "state", "size", "age", "colour", "origin")  # of English adjectives
_GROUPS = {"colour": "colour", "origin": "origin"}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A sentence and its translation, the construction they show, and the combinations by which the corpus is split.

    `alignment` is gold: the links (English index, French index) between the `alignment.words` of the two sentences,
    all of them sure.
    """

    english: str
    french: str
    construction: str
    features: frozenset[tuple[str, str]] = frozenset()
    alignment: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Phrase(Part):
    """A noun phrase in both languages, the features that other words agree with, and the combinations it uses."""

    feminine: bool
    plural: bool
    person: int = 3
    pairs: tuple[tuple[str, str], ...] = ()
    noun: Noun | None = None

    @property
    def ending(self) -> str:
        """The ending of a regular adjective or participle that agrees with it."""
        return ("e" if self.feminine else "") + ("s" if self.plural else "")


_ONE = frozenset({(0, 0)})
PRONOUNS = {
    "I": Phrase(("I",), ("je",), _ONE, False, False, 1),
    "we": Phrase(("we",), ("nous",), _ONE, False, True, 1),
    "you": Phrase(("you",), ("vous",), _ONE, False, True, 2),
    "he": Phrase(("he",), ("il",), _ONE, False, False),
    "she": Phrase(("she",), ("elle",), _ONE, True, False),
    "they": Phrase(("they",), ("ils",), _ONE, False, True),
}
OBJECTS = {  # English object: French direct, indirect
    "I": ("me", "me", "me"), "we": ("us", "nous", "nous"), "you": ("you", "vous", "vous"), "he": ("him", "le", "lui"),
    "she": ("her", "la", "lui"), "they": ("them", "les", "leur"),
}  # fmt: skip


@functools.cache
def _nouns_of(kinds: frozenset[str]) -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS if noun.kinds & kinds)


def nouns_of(kinds: Set[str], where: Callable[[Noun], bool] | None = None) -> Sequence[Noun]:
    """Returns the nouns of any of these classes."""
    found = _nouns_of(frozenset(kinds))
    return found if where is None else [noun for noun in found if where(noun)]


@functools.cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """Returns the adjectives that make sense with a noun, each English word once."""
    return tuple(adjective for adjective in ADJECTIVES if adjective.suits & noun.kinds)


def noun_phrase(
    pick: random.Random,
    noun: Noun,
    *,
    determiner: str = "",
    adjectives: int = -1,
    plural: bool | None = None,
    negated: bool = False,
    unsaid: Words = (),
) -> Phrase:
    """Draws a noun phrase: a determiner, up to two adjectives and the noun.

    Args:
      determiner: "the", "a" (in the plural "some"), "this", a possessive, a number, or "" for a random one.
      adjectives: the number of adjectives; -1 for a random number.
      negated: True for the object of a negation, where French has "de" for "a".
      unsaid: English adjectives that would make no sense here.
    """
    plural = pick.random() < 0.3 if plural is None else plural
    determiner = determiner or _determiner(pick, noun, plural)
    plural = (plural and "single" not in noun.kinds) or determiner in NUMBERS
    count = pick.choice((0, 0, 0, 1, 1, 1, 2)) if adjectives < 0 else adjectives
    chosen = _choose_adjectives(pick, noun, count, unsaid)
    return build(noun, chosen, determiner=determiner, plural=plural, negated=negated)


def build(noun: Noun, chosen: list[Adjective], *, determiner: str, plural: bool, negated: bool = False) -> Phrase:
    """Returns the phrase of a noun with these adjectives, given in English order."""
    before = [a for a in chosen if a.before]
    after = [a for a in chosen if not a.before]
    word = noun.french_plural if plural else noun.french
    shown = [a.form(feminine=noun.feminine, plural=plural) for a in before]
    if before and not plural and not noun.feminine and begins_with_vowel(word):
        shown[-1] = before[-1].liaison
    named = said(noun.english_plural if plural else noun.english, word)
    leading = [said(a.english, form) for a, form in zip(before, shown, strict=True)]
    trailing = [said(a.english, a.form(feminine=noun.feminine, plural=plural)) for a in after]
    french = [*leading, named, *reversed(trailing)]
    # English order: the adjectives as they were chosen.
    said_of = dict(zip([*before, *after], [*leading, *trailing], strict=True))
    english = [*(said_of[a] for a in chosen), named]
    article = _french_determiner(determiner, french[0].french[0], noun.feminine, plural)
    if determiner == "a" and (negated or (plural and before)):
        article = "de"
    opening = said(_english_determiner(determiner, english[0].english[0], plural, negated), article)
    part = tie([opening, *english], [opening, *french])
    return Phrase(
        part.english,
        part.french,
        part.links,
        noun.feminine,
        plural,
        pairs=tuple((a.english, noun.english) for a in chosen),
        noun=noun,
    )


def _determiner(pick: random.Random, noun: Noun, plural: bool) -> str:
    if "family" in noun.kinds:
        return pick.choice(tuple(POSSESSIVES))
    draw = pick.random()
    if plural and draw < 0.15:
        return pick.choice(tuple(NUMBERS))
    if draw < 0.35:
        return "a"
    if draw < 0.5 and "ours" in noun.kinds:
        return pick.choice(tuple(POSSESSIVES))
    return "this" if draw < 0.6 else "the"


def definite(pick: random.Random, noun: Noun) -> str:
    """Draws a determiner for a known thing: no number, no indefinite article."""
    if "family" in noun.kinds or ("ours" in noun.kinds and pick.random() < 0.3):
        return pick.choice(tuple(POSSESSIVES))
    return pick.choice(("the", "the", "the", "this"))


def object_phrase(
    pick: random.Random, verb: Verb, noun: Noun, *, determiner: str = "", adjectives: int = -1, negated: bool = False
) -> Phrase:
    """Draws the object of a verb, without adjectives that contradict it; verbs of state take a definite object."""
    determiner = determiner or (definite(pick, noun) if verb.state else "")
    unsaid = CLASHES.get(verb.english[0], ())
    return noun_phrase(pick, noun, determiner=determiner, adjectives=adjectives, negated=negated, unsaid=unsaid)


def _choose_adjectives(pick: random.Random, noun: Noun, count: int, unsaid: Words) -> list[Adjective]:
    """Draws adjectives in English order: at most one that stands before the French noun, and one from each group."""
    chosen: list[Adjective] = []
    for _ in range(count):
        groups = {_group(a) for a in chosen}
        fit = [a for a in adjectives_for(noun) if _group(a) not in groups and a.english not in unsaid]
        if fit:
            chosen.append(pick.choice(fit))
    return sorted(chosen, key=lambda a: ORDER.index(a.kind))


def _group(adjective: Adjective) -> str:
    return "before" if adjective.before else _GROUPS.get(adjective.kind, "quality")


def predicate(pick: random.Random, noun: Noun, used: Phrase) -> Adjective:
    """Draws a predicative adjective for a noun, if possible of another kind than its attributive ones."""
    said = {a for a, _ in used.pairs}
    kinds = {a.kind for a in ADJECTIVES if a.english in said}
    fit = [a for a in adjectives_for(noun) if a.english not in said and a.english != "new"]  # neuf, not nouveau
    if "person" in noun.kinds:
        fit = [a for a in fit if a.kind != "look"]  # "bon" means something else when it describes a person
    return pick.choice([a for a in fit if a.kind not in kinds] or fit)


def _english_determiner(determiner: str, following: str, plural: bool, negated: bool) -> str:
    if determiner == "a":
        return ("any" if negated else "some") if plural else "an" if following[0].lower() in "aeiou" else "a"
    return "these" if determiner == "this" and plural else determiner


def _french_determiner(determiner: str, following: str, feminine: bool, plural: bool) -> str:
    vowel = begins_with_vowel(following)
    if determiner in NUMBERS:
        return NUMBERS[determiner]
    if determiner in POSSESSIVES:
        masculine, fem, many = POSSESSIVES[determiner]
        return many if plural else fem if feminine and not vowel else masculine
    if determiner == "this":
        return "ces" if plural else "cette" if feminine else "cet" if vowel else "ce"
    if determiner == "a":
        return "des" if plural else "une" if feminine else "un"
    return "les" if plural else "la" if feminine else "le"


def both(first: Phrase, second: Phrase) -> Phrase:
    """Returns two phrases joined by "and": plural, feminine only if both are."""
    together = [first, said("and", "et"), second]
    part = tie(together, together)
    pairs = first.pairs + second.pairs
    return Phrase(part.english, part.french, part.links, first.feminine and second.feminine, True, pairs=pairs)


def make_pair(
    construction: str,
    english: Sequence[Word | Part],
    *used: Phrase,
    french: Sequence[Word | Part] | None = None,
    end: str = ".",
    marks: tuple[tuple[str, str], ...] = (),
) -> Pair:
    """Returns the two sentences as text, with their alignment and the combinations in them.

    Args:
      french: the same parts in French order, if it differs from the English order.
    """
    whole = tie(english, english if french is None else french)
    joined = join_french(whole.french)
    position = {token: index for index, (_, tokens) in enumerate(joined) for token in tokens}
    links = {(i, position[j]) for i, j in whole.links} | {(len(whole.english), len(joined))}
    assert {i for i, _ in links} == set(range(len(whole.english) + 1)), "an English word has no link"
    assert {j for _, j in links} == set(range(len(joined) + 1)), "a French word has no link"
    features = frozenset(pair for phrase in used for pair in phrase.pairs) | frozenset(marks)
    texts = english_text(whole.english, end), french_text([word for word, _ in joined], end)
    return Pair(*texts, construction, features, tuple(sorted(links)))


def english_text(words: Words, end: str = ".") -> str:
    """Joins words into a sentence."""
    text = " ".join(words) + end
    return text[0].upper() + text[1:]


def french_text(joined: Sequence[str], end: str = ".") -> str:
    """Joins words into a sentence, after elision and contraction by `join_french`."""
    text = " ".join(joined).replace("' ", "'") + (f" {end}" if end in "?!" else end)
    return text[0].upper() + text[1:]


def join_french(words: Words) -> list[tuple[str, list[int]]]:
    """Returns the words after elision and contraction, each with the indices of the words that it is made of."""
    done: list[tuple[str, list[int]]] = []
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else ""
        if word in ELIDED and following and begins_with_vowel(following):
            word = ELIDED[word]
        if done and (done[-1][0], word) in CONTRACTED:
            done[-1] = CONTRACTED[done[-1][0], word], [*done[-1][1], i]
        else:
            done.append((word, [i]))
    return done
