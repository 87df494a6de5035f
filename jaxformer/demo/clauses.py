"""Constructions of two clauses, where words agree across the border."""

from __future__ import annotations

import random

from jaxformer.demo import verbs
from jaxformer.demo.conjugation import (
    NEGATIONS,
    draw_negation,
    draw_tense,
    english_be,
    english_verb,
    french_verb,
)
from jaxformer.demo.lexicon import ADJECTIVES, Noun
from jaxformer.demo.phrases import (
    OBJECTS,
    PRONOUNS,
    Pair,
    Phrase,
    adjectives_for,
    make_pair,
    noun_phrase,
    nouns_of,
    object_phrase,
    predicate,
)
from jaxformer.demo.statements import PERSON, draw_other, draw_subject, draw_third, use
from jaxformer.demo.verbs import BE, Verb

MOODS = [a for a in ADJECTIVES if a.kind == "mood" and "person" in a.suits]
INTERMEDIATE = ("present", "past", "past", "progressive")
SHOWN = [verb for verb in verbs.TRANSITIVE if "person" not in verb.object or verb.infinitive == "voir"]
THINGS = {"animal", "building", "vehicle", "thing", "clothes", "text", "food"}


def _object_noun(pick: random.Random, verb: Verb) -> Noun:
    """Draws a noun, not of a person, that the verb takes and that an adjective can describe."""
    return pick.choice(nouns_of(verb.object, lambda noun: bool(noun.kinds & THINGS)))


def relative_object(pick: random.Random) -> Pair:
    """The houses that the old man buys are white: agreement across a clause, of participle and adjective."""
    verb = pick.choice(SHOWN)
    noun, subject = _object_noun(pick, verb), draw_subject(pick, PERSON)
    head = object_phrase(pick, verb, noun, determiner="the", adjectives=pick.choice((0, 0, 1, 2)))
    tense = draw_tense(pick, subject, INTERMEDIATE, verb)
    negation = draw_negation(pick, verb, tense, 0.2)
    then = "present" if tense == "present" else pick.choice(("present", "past"))
    then = "past" if verb is verbs.EAT and tense != "present" else then  # food that was eaten no longer exists
    adjective = predicate(pick, noun, head)
    clause = french_verb(verb, subject, tense, negation=NEGATIONS.get(negation), ending=head.ending)
    marks = (
        *use(verb, noun),
        (adjective.english, noun.english),
        *((("that", f"{tense} {negation}"),) if negation else ()),
    )
    return make_pair(
        "relative clause",
        (*head.english, "that", *subject.english, *english_verb(verb, subject, tense, negation), english_be(head, then), adjective.english),
        (*head.french, "que", *subject.french, *clause, *french_verb(BE, head, then), adjective.form(feminine=head.feminine, plural=head.plural)),
        head, subject, marks=marks,
    )  # fmt: skip


def relative_subject(pick: random.Random) -> Pair:
    """The women who sell the apples are happy: the noun beside the adjective is not the one it agrees with."""
    verb = pick.choice(verbs.TRANSITIVE)
    noun, other = pick.choice(nouns_of(PERSON, lambda n: "family" not in n.kinds)), pick.choice(nouns_of(verb.object))
    head = noun_phrase(pick, noun, determiner="the", adjectives=pick.choice((0, 0, 1)))
    tense = draw_tense(pick, head, INTERMEDIATE, verb)
    negation = draw_negation(pick, verb, tense, 0.15)
    then = "present" if tense == "present" else pick.choice(("present", "past"))
    object_ = object_phrase(pick, verb, other, adjectives=pick.choice((0, 0, 1)), negated=bool(negation))
    adjective = predicate(pick, noun, head)
    return make_pair(
        "relative subject",
        (*head.english, "who", *english_verb(verb, head, tense, negation), *object_.english, english_be(head, then), adjective.english),
        (*head.french, "qui", *french_verb(verb, head, tense, negation=NEGATIONS.get(negation)), *object_.french,
         *french_verb(BE, head, then), adjective.form(feminine=head.feminine, plural=head.plural)),
        head, object_, marks=(*use(verb, other), (adjective.english, noun.english)),
    )  # fmt: skip


SEQUELS = {  # a verb whose object can be found, seen or bought first
    "keep": ("lose", "forget", "hide", "sell"), "food": ("eat", "cut"), "text": ("read",), "clothes": ("wear", "buy", "sell"),
    "animal": ("follow", "watch"), "child": ("call", "help", "thank"), "worker": ("call", "help", "thank", "follow"),
}  # fmt: skip
OPENINGS = {
    "keep": ("find", "look for"), "food": ("buy", "look for"), "text": ("find", "look for"), "clothes": ("look at", "find", "look for"),
    "animal": ("see", "find", "look for"), "child": ("see", "meet", "wait for"), "worker": ("see", "meet", "wait for"),
}  # fmt: skip
_BY_NAME = {verb.english[0]: verb for verb in verbs.TRANSITIVE}


def object_pronoun(pick: random.Random) -> Pair:
    """The boy buys the apple and eats it: the pronoun has the gender of a noun in another clause."""
    kind = pick.choice(tuple(SEQUELS))
    first, second = _BY_NAME[pick.choice(OPENINGS[kind])], _BY_NAME[pick.choice(SEQUELS[kind])]
    noun = pick.choice(nouns_of({kind}))
    determiner = pick.choice(("the", "the", "this", "a", *(("my",) if "ours" in noun.kinds else ())))
    object_ = noun_phrase(pick, noun, adjectives=pick.choice((0, 0, 1)), determiner=determiner)
    subject = draw_subject(pick, PERSON)
    tense = draw_tense(pick, subject, ("present", "past", "future"), first, second)
    it = _object_word(object_)
    clitic = ("les" if object_.plural else "la" if noun.feminine else "le",)
    pronoun = subject in PRONOUNS.values()
    return make_pair(
        "object pronoun",
        (*subject.english, *english_verb(first, subject, tense), *object_.english, "and", *(subject.english if pronoun else ()),
         *english_verb(second, subject, tense), it),
        (*subject.french, *french_verb(first, subject, tense), *object_.french, "et", *(subject.french if pronoun else ()),
         *french_verb(second, subject, tense, clitic=clitic, ending=object_.ending)),
        subject, object_,
    )  # fmt: skip


def _object_word(phrase: Phrase) -> str:
    if phrase.plural:
        return "them"
    if phrase.noun is not None and "person" in phrase.noun.kinds:
        return "her" if phrase.feminine else "him"
    return "it"


def pronoun_object(pick: random.Random) -> Pair:
    """She sees me; they did not wait for us: the object moves before the verb."""
    verb = pick.choice([v for v in verbs.TRANSITIVE if "person" in v.object])
    subject = draw_subject(pick, PERSON)
    name = draw_other(pick, subject)
    object_ = PRONOUNS[name]
    english, french, _ = OBJECTS[name]
    tense = draw_tense(pick, subject, ("present", "progressive", "future", "past"), verb)
    if tense == "past" and name in (
        "I",
        "we",
        "you",
    ):  # the sentence does not tell their gender, which the participle needs
        tense = "future"
    negation = draw_negation(pick, verb, tense, 0.3)
    return make_pair(
        "pronoun",
        (*subject.english, *english_verb(verb, subject, tense, negation), english),
        (*subject.french, *french_verb(verb, subject, tense, negation=NEGATIONS.get(negation), clitic=(french,), ending=object_.ending)),
        subject,
    )  # fmt: skip


FAULTS = ("broken", "empty", "heavy", "old", "bad", "small", "expensive", "closed", "tired", "grey")


PLEASED, SORRY = ("love", "buy", "visit"), ("sell", "leave")


def because(pick: random.Random) -> Pair:
    """I love this house because it is old: "elle", for "maison"; they bought the lamps but they are broken."""
    verb = _BY_NAME[pick.choice((*PLEASED, *SORRY, "read", "find", "wear", "clean"))]
    noun, subject = _object_noun(pick, verb), draw_third(pick)
    determiner = pick.choice(("the", "this") if verb.state else ("the", "this", "a"))
    object_ = object_phrase(pick, verb, noun, determiner=determiner, adjectives=0)
    tense = draw_tense(pick, subject, ("present", "past", "past"), verb)
    fit = [a for a in adjectives_for(noun) if (a.english in FAULTS) != (verb.english[0] in PLEASED)]
    adjective = pick.choice([a for a in fit if a.english != "new"])
    word, mot = ("because", ("parce", "que")) if verb.english[0] in (*PLEASED, *SORRY) else ("but", ("mais",))
    form = adjective.form(feminine=object_.feminine, plural=object_.plural)
    it = "they" if object_.plural else "it"
    il = ("elle" if object_.feminine else "il") + ("s" if object_.plural else "")
    return make_pair(
        "because",
        (*subject.english, *english_verb(verb, subject, tense), *object_.english, word, it, english_be(object_, tense), adjective.english),
        (*subject.french, *french_verb(verb, subject, tense), *object_.french, *mot, il, *french_verb(BE, object_, tense), form),
        subject, object_, marks=(*use(verb, noun), (adjective.english, noun.english)),
    )  # fmt: skip


def know(pick: random.Random) -> Pair:
    """Knowing somebody is connaître; knowing that something is so, or where it is, is savoir."""
    subject, which = draw_subject(pick, PERSON), pick.randrange(3)
    tense = pick.choice(("present", "present", "past"))
    negation = "not" if pick.random() < 0.3 else ""
    closed = NEGATIONS.get(negation)
    if which == 0:
        noun = pick.choice(nouns_of(PERSON))
        object_ = noun_phrase(pick, noun, adjectives=pick.choice((0, 1)))
        if object_.english[0] in ("a", "an", "some"):
            object_ = noun_phrase(pick, noun, determiner="this")
        verb, english, french = verbs.KNOW_PERSON, object_.english, object_.french
    else:
        noun = pick.choice(nouns_of(PERSON if which == 1 else {"keep"}))
        own = ("my", "his", "her", "our") if "ours" in noun.kinds else ()
        determiner = pick.choice(own if "family" in noun.kinds else ("the", "the", *own))
        object_ = noun_phrase(pick, noun, determiner=determiner)
        verb = verbs.KNOW_FACT
        finite = french_verb(BE, object_, tense)
        if which == 1:
            adjective = pick.choice([a for a in MOODS if a.english not in {word for word, _ in object_.pairs}])
            english = ("that", *object_.english, english_be(object_, tense), adjective.english)
            french = ("que", *object_.french, *finite, adjective.form(feminine=object_.feminine, plural=object_.plural))
        else:
            english = ("where", *object_.english, english_be(object_, tense))
            french = ("où", *finite, *object_.french)
    return make_pair(
        "know",
        (*subject.english, *english_verb(verb, subject, tense, negation), *english),
        (*subject.french, *french_verb(verb, subject, tense, negation=closed), *french),
        subject, object_,
    )  # fmt: skip
