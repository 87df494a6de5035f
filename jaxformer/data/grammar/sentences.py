"""The constructions: each draws a sentence and its translation."""

from __future__ import annotations

import dataclasses
import random

from jaxformer.data.grammar import lexicon
from jaxformer.data.grammar.lexicon import BE, INTRANSITIVE, MOTION, NOUNS, TRANSITIVE, Noun, Verb
from jaxformer.data.grammar.phrases import (
    PRONOUNS,
    Phrase,
    Words,
    adjectives_for,
    both,
    draw_tense,
    english_text,
    english_verb,
    french_text,
    french_verb,
    noun_phrase,
    nouns_of,
)

TENSES = ("present", "present", "past", "past", "progressive", "future")
NEGATIONS = {"not": "pas", "never": "jamais"}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A sentence and its translation, the construction they show, and what the split goes by."""

    english: str
    french: str
    construction: str
    features: frozenset[tuple[str, str]] = frozenset()


def _pair(
    name: str, english: Words, french: Words, *used: Phrase, end: str = ".", mark: tuple[str, str] | None = None
) -> Pair:
    features = frozenset(pair for phrase in used for pair in phrase.pairs) | ({mark} if mark else set())
    return Pair(english_text(english, end), french_text(french, end), name, frozenset(features))


def _subject(pick: random.Random, kind: str, *, pronouns: bool = True) -> Phrase:
    if pronouns and kind in ("person", "being") and pick.random() < 0.25:
        return PRONOUNS[pick.choice(list(PRONOUNS))]
    return noun_phrase(pick, pick.choice(nouns_of(kind)))


def _third(pick: random.Random, kind: str) -> Phrase:
    """A subject whose gender and number show, for what must agree with it."""
    if kind == "person" and pick.random() < 0.2:
        return PRONOUNS[pick.choice(["he", "she", "they"])]
    return noun_phrase(pick, pick.choice(nouns_of(kind)))


def _ending(phrase: Phrase) -> str:
    return ("e" if phrase.feminine else "") + ("s" if phrase.plural else "")


def _english_be(subject: Phrase, past: bool) -> str:
    if subject.person == 1 and not subject.plural:
        return "was" if past else "am"
    return ("were" if past else "are") if subject.plural else ("was" if past else "is")


def _negated(pick: random.Random, chance: float = 0.25) -> tuple[str, str]:
    """English word and French partner of a negation, often none."""
    return pick.choice(list(NEGATIONS.items())) if pick.random() < chance else ("", "")


def _english_clause(verb: Verb, subject: Phrase, tense: str, negation: str) -> Words:
    if negation == "never":
        group = english_verb(verb, subject, tense)
        return ("never", *group) if tense in ("present", "past") else (group[0], "never", *group[1:])
    return english_verb(verb, subject, tense, negative=negation == "not")


def action(pick: random.Random) -> Pair:
    """The old man does not see the white houses."""
    verb = pick.choice(TRANSITIVE)
    subject, object_ = _subject(pick, verb.subject), noun_phrase(pick, pick.choice(nouns_of(verb.object)))
    tense = draw_tense(pick, subject, TENSES, verb)
    english, french = _negated(pick)
    return _pair(
        "action",
        (*subject.english, *_english_clause(verb, subject, tense, english), *object_.english),
        (*subject.french, *french_verb(verb, subject, tense, negation=french), *object_.french),
        subject, object_,
    )  # fmt: skip


def state(pick: random.Random) -> Pair:
    """The doors of the big house are not green: the adjective agrees with a noun some words away."""
    subject, noun = _described(pick)
    past, negative = pick.random() < 0.3, pick.random() < 0.25
    adjective = pick.choice(adjectives_for(noun))
    finite = BE.imperfect + ("aient" if subject.plural else "ait") if past else BE.present[4 if subject.plural else 1]
    english = (*subject.english, _english_be(subject, past), *(["not"] if negative else []), adjective.english)
    verb = ("ne", finite, "pas") if negative else (finite,)
    form = adjective.form(feminine=subject.feminine, plural=subject.plural)
    used = dataclasses.replace(subject, pairs=(*subject.pairs, (adjective.english, noun.english)))
    return _pair("state", english, (*subject.french, *verb, form), used)


def _described(pick: random.Random) -> tuple[Phrase, Noun]:
    """A noun phrase, half the time with "of" another that does not decide the agreement."""
    if pick.random() < 0.5:
        noun = pick.choice([n for n in NOUNS if n.kinds & {"person", "animal", "thing", "building"}])
        return noun_phrase(pick, noun), noun
    noun = pick.choice(nouns_of("thing"))
    owner = noun_phrase(
        pick, pick.choice(nouns_of("person")), determiner=pick.choice(["the", "my", "her", "this", "our"])
    )
    head = noun_phrase(pick, noun, determiner="the", adjectives=pick.choice((0, 0, 1)))
    english, french = (*head.english, "of", *owner.english), (*head.french, "de", *owner.french)
    return Phrase(english, french, head.feminine, head.plural, pairs=head.pairs + owner.pairs), noun


def relative(pick: random.Random) -> Pair:
    """The houses that the old man buys are white: agreement across a clause, of participle and adjective."""
    verb = pick.choice([v for v in TRANSITIVE if v.object in ("thing", "food", "text", "clothes", "any", "building")])
    noun = pick.choice([n for n in nouns_of(verb.object) if not n.kinds & {"person"}])
    head = noun_phrase(pick, noun, determiner="the", adjectives=pick.choice((0, 0, 1, 2)))
    subject = _subject(pick, verb.subject)
    tense = draw_tense(pick, subject, ("present", "past", "progressive"), verb)
    english, french = _negated(pick)
    adjective, past = pick.choice(adjectives_for(noun)), pick.random() < 0.3
    finite = BE.imperfect + ("aient" if head.plural else "ait") if past else BE.present[4 if head.plural else 1]
    clause = french_verb(verb, subject, tense, negation=french, agree=_ending(head))
    form = adjective.form(feminine=head.feminine, plural=head.plural)
    used = dataclasses.replace(head, pairs=(*head.pairs, (adjective.english, noun.english)))
    return _pair(
        "relative clause",
        (*head.english, "that", *subject.english, *_english_clause(verb, subject, tense, english), _english_be(head, past), adjective.english),
        (*head.french, "que", *subject.french, *clause, finite, form),
        used, subject,
        mark=("relative clause", f"{tense} {english}") if english else None,
    )  # fmt: skip


def institution(pick: random.Random) -> Pair:
    """The agreement on the European Economic Area was signed in August 1992: two adjectives in the opposite order."""
    name, nom, feminine = pick.choice(lexicon.INSTITUTIONS)
    outer, outer_m, outer_f = pick.choice(lexicon.OUTER)
    inner, inner_forms = pick.choice(lexicon.INNER)
    inner_m, _, inner_f = inner_forms.partition("/")
    document, titre, is_feminine = pick.choice(lexicon.DOCUMENTS)
    done, fait = pick.choice(lexicon.PASSIVES)
    month, year = pick.choice(list(lexicon.MONTHS)), str(pick.randrange(1950, 2024))
    adjectives = ((inner_f or inner_m) if feminine else inner_m, outer_f if feminine else outer_m)
    negative = pick.random() < 0.2
    participle = fait + ("e" if is_feminine else "")
    verb = ("ne", "a", "pas", "été") if negative else ("a", "été")
    return _pair(
        "institution",
        ("the", document, "on", "the", outer, inner, name, "was", *(["not"] if negative else []), done, "in", month, year),
        ("la" if is_feminine else "le", titre, "sur", "la" if feminine else "le", nom, *adjectives, *verb, participle, "en", lexicon.MONTHS[month], year),
        mark=(outer, name + inner),
    )  # fmt: skip


def pronoun(pick: random.Random) -> Pair:
    """The boy finds the apple and eats it: the pronoun has the gender of a noun in another clause."""
    second = pick.choice([v for v in TRANSITIVE if v.object in ("thing", "food", "text", "clothes", "person")])
    objects = nouns_of(second.object)
    first = pick.choice([v for v in TRANSITIVE if v.object in ("any", second.object) and v is not second])
    noun = pick.choice(objects)
    plural = pick.random() < 0.3
    object_ = noun_phrase(
        pick, noun, adjectives=pick.choice((0, 0, 1)), plural=plural, determiner=pick.choice(["the", "this", "my", "a"])
    )
    subject = _subject(pick, "person")
    tense = draw_tense(pick, subject, ("present", "past", "future"), first, second)
    it = "them" if object_.plural else ("her" if noun.feminine else "him") if "person" in noun.kinds else "it"
    clitic = ("les" if object_.plural else "la" if noun.feminine else "le",)
    english, french = (
        english_verb(second, subject, tense),
        french_verb(second, subject, tense, clitic=clitic, agree=_ending(object_)),
    )
    joined = subject.french if subject.person != 3 or subject in PRONOUNS.values() else ()
    again = subject.english if joined else ()
    return _pair(
        "object pronoun",
        (*subject.english, *english_verb(first, subject, tense), *object_.english, "and", *again, *english, it),
        (*subject.french, *french_verb(first, subject, tense), *object_.french, "et", *joined, *french),
        subject, object_,
    )  # fmt: skip


def question(pick: random.Random) -> Pair:
    """Why does the girl read the letter?"""
    verb, past = pick.choice(TRANSITIVE), pick.random() < 0.4
    subject, object_ = _subject(pick, verb.subject), noun_phrase(pick, pick.choice(nouns_of(verb.object)))
    word, mot = pick.choice((("", ()), ("", ()), ("why", ("pourquoi",)), ("when", ("quand",)), ("where", ("où",))))
    singular = subject.person == 3 and not subject.plural
    do = "did" if past else "does" if singular else "do"
    return _pair(
        "question",
        (*([word] if word else []), do, *subject.english, verb.english[0], *object_.english),
        (*mot, "est-ce", "que", *subject.french, *french_verb(verb, subject, "past" if past else "present"), *object_.french),
        subject, object_, end="?",
    )  # fmt: skip


def motion(pick: random.Random) -> Pair:
    """My sister went to the market yesterday: être, whose participle agrees; à contracts."""
    verb, tense = pick.choice(MOTION), pick.choice(("present", "past", "past", "future"))
    subject = _third(pick, "person" if pick.random() < 0.8 else "animal")
    place = noun_phrase(
        pick,
        pick.choice(nouns_of("place")),
        determiner=pick.choice(["the", "the", "this", "our", "his"]),
        adjectives=pick.choice((0, 0, 1)),
        plural=False,
    )
    when = {"past": ("yesterday", "hier"), "future": ("tomorrow", "demain"), "present": ("today", "aujourd'hui")}[tense]
    said = pick.random() < 0.6
    negative = pick.random() < 0.2
    group = english_verb(verb, subject, tense, negative=negative)
    return _pair(
        "motion",
        (*subject.english, *group, verb.object, *place.english, *([when[0]] if said else [])),
        (*subject.french, *french_verb(verb, subject, tense, etre=True, negation="pas" if negative else ""), "à", *place.french, *([when[1]] if said else [])),
        subject, place,
    )  # fmt: skip


def activity(pick: random.Random) -> Pair:
    """Three black cats sleep in the garden."""
    verb, tense = pick.choice(INTRANSITIVE), pick.choice(TENSES)
    subject = _subject(pick, verb.subject)
    if pick.random() < 0.25:
        subject = both(_plain(pick, verb.subject), _plain(pick, verb.subject))
    place = noun_phrase(pick, _inside(pick), determiner=pick.choice(["the", "the", "my", "a"]), plural=False)
    english, french = _negated(pick, 0.2)
    return _pair(
        "activity",
        (*subject.english, *_english_clause(verb, subject, tense, english), "in", *place.english),
        (*subject.french, *french_verb(verb, subject, tense, negation=french), "dans", *place.french),
        subject, place,
    )  # fmt: skip


def _inside(pick: random.Random) -> Noun:
    """A place that one is in, not on."""
    return pick.choice([noun for noun in nouns_of("place") if noun.english not in ("beach", "island")])


def _plain(pick: random.Random, kind: str) -> Phrase:
    return noun_phrase(
        pick, pick.choice(nouns_of(kind)), determiner="the", adjectives=pick.choice((0, 1)), plural=False
    )


def existence(pick: random.Random) -> Pair:
    """There are two red cars in the street."""
    noun = pick.choice([n for n in NOUNS if n.kinds & {"person", "animal", "thing"}])
    plural = pick.random() < 0.6
    thing = noun_phrase(pick, noun, determiner=pick.choice(list(lexicon.NUMBERS)) if plural else "a", plural=plural)
    place = noun_phrase(pick, _inside(pick), determiner=pick.choice(["the", "this", "our"]), plural=False)
    past = pick.random() < 0.4
    return _pair(
        "existence",
        ("there", _english_be(thing, past), *thing.english, "in", *place.english),
        ("il", "y", "avait" if past else "a", *thing.french, "dans", *place.french),
        thing, place,
    )  # fmt: skip


def comparison(pick: random.Random) -> Pair:
    """The red car is more expensive than the bicycle."""
    noun = pick.choice([n for n in NOUNS if n.kinds & {"person", "animal", "thing", "building"}])
    kind = next(kind for kind in ("person", "animal", "building", "thing") if kind in noun.kinds)
    first = noun_phrase(pick, noun, adjectives=pick.choice((0, 1)))
    second = noun_phrase(pick, pick.choice(nouns_of(kind)), adjectives=0)
    adjective = pick.choice([a for a in adjectives_for(noun) if a.english in COMPARABLE or a.kind == "mood"])
    how = COMPARABLE.get(adjective.english, f"more {adjective.english}")
    form = adjective.form(feminine=first.feminine, plural=first.plural)
    return _pair(
        "comparison",
        (*first.english, _english_be(first, False), *how.split(), "than", *second.english),
        (*first.french, BE.present[4 if first.plural else 1], "plus", form, "que", *second.french),
        first, second,
    )  # fmt: skip


COMPARABLE = {"small": "smaller", "big": "bigger", "old": "older", "young": "younger", "beautiful": "more beautiful",
              "pretty": "prettier", "strong": "stronger", "rich": "richer", "kind": "kinder", "proud": "prouder", "sad": "sadder",
              "happy": "happier", "angry": "angrier"}  # fmt: skip
