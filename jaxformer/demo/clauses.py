"""Constructions of two clauses, where words agree across the border."""

from __future__ import annotations

import dataclasses
import random

from jaxformer.demo import verbs
from jaxformer.demo.alignment import said
from jaxformer.demo.conjugation import be, draw_negation, draw_tense, verb_group
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
from jaxformer.demo.verbs import Verb

MOODS = [a for a in ADJECTIVES if a.kind == "mood" and "person" in a.suits]
INTERMEDIATE = ("present", "past", "past", "progressive")
SHOWN = [verb for verb in verbs.TRANSITIVE if "person" not in verb.object or verb.infinitive == "voir"]
THINGS = {"animal", "building", "vehicle", "thing", "clothes", "text", "food"}


def _object_noun(pick: random.Random, verb: Verb) -> Noun:
    """Draws a noun, not of a person, that the verb takes and that an adjective can describe."""
    return pick.choice(nouns_of(verb.object, lambda noun: bool(noun.kinds & THINGS)))


def relative_object(pick: random.Random) -> Pair:
    """Draws "The houses that the old man buys are white.": participle and adjective agree across a clause."""
    verb = pick.choice(SHOWN)
    noun, subject = _object_noun(pick, verb), draw_subject(pick, PERSON)
    head = object_phrase(pick, verb, noun, determiner="the", adjectives=pick.choice((0, 0, 1, 2)))
    tense = draw_tense(pick, subject, INTERMEDIATE, verb)
    negation = draw_negation(pick, verb, tense, 0.2)
    then = "present" if tense == "present" else pick.choice(("present", "past"))
    then = "past" if verb is verbs.EAT and tense != "present" else then  # food that was eaten no longer exists
    adjective = predicate(pick, noun, head)
    clause = verb_group(verb, subject, tense, negation, ending=head.ending)
    form = adjective.form(feminine=head.feminine, plural=head.plural)
    marks = (
        *use(verb, noun),
        (adjective.english, noun.english),
        *((("that", f"{tense} {negation}"),) if negation else ()),
    )
    return make_pair(
        "relative clause",
        [head, said("that", "que"), subject, clause, be(head, then), said(adjective.english, form)],
        head, subject, marks=marks,
    )  # fmt: skip


def relative_subject(pick: random.Random) -> Pair:
    """Draws "The women who sell the apples are happy.": the adjective does not agree with the nearest noun."""
    verb = pick.choice(verbs.TRANSITIVE)
    noun, other = pick.choice(nouns_of(PERSON, lambda n: "family" not in n.kinds)), pick.choice(nouns_of(verb.object))
    head = noun_phrase(pick, noun, determiner="the", adjectives=pick.choice((0, 0, 1)))
    tense = draw_tense(pick, head, INTERMEDIATE, verb)
    negation = draw_negation(pick, verb, tense, 0.15)
    then = "present" if tense == "present" else pick.choice(("present", "past"))
    object_ = object_phrase(pick, verb, other, adjectives=pick.choice((0, 0, 1)), negated=bool(negation))
    adjective = predicate(pick, noun, head)
    form = adjective.form(feminine=head.feminine, plural=head.plural)
    return make_pair(
        "relative subject",
        [head, said("who", "qui"), verb_group(verb, head, tense, negation), object_, be(head, then), said(adjective.english, form)],
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
    """Draws "The boy buys the apple and eats it.": the pronoun has the gender of a noun in another clause."""
    kind = pick.choice(tuple(SEQUELS))
    first, second = _BY_NAME[pick.choice(OPENINGS[kind])], _BY_NAME[pick.choice(SEQUELS[kind])]
    noun = pick.choice(nouns_of({kind}))
    determiner = pick.choice(("the", "the", "this", "a", *(("my",) if "ours" in noun.kinds else ())))
    object_ = noun_phrase(pick, noun, adjectives=pick.choice((0, 0, 1)), determiner=determiner)
    subject = draw_subject(pick, PERSON)
    tense = draw_tense(pick, subject, ("present", "past", "future"), first, second)
    it = _object_word(object_)
    clitic = "les" if object_.plural else "la" if noun.feminine else "le"
    again = [dataclasses.replace(subject)] if subject in PRONOUNS.values() else []
    return make_pair(
        "object pronoun",
        [subject, verb_group(first, subject, tense), object_, said("and", "et"), *again,
         verb_group(second, subject, tense, pronoun=(it, clitic), ending=object_.ending)],
        subject, object_,
    )  # fmt: skip


def _object_word(phrase: Phrase) -> str:
    if phrase.plural:
        return "them"
    if phrase.noun is not None and "person" in phrase.noun.kinds:
        return "her" if phrase.feminine else "him"
    return "it"


def pronoun_object(pick: random.Random) -> Pair:
    """Draws "She sees me." or "They did not wait for us.": the French object stands before the verb."""
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
    group = verb_group(verb, subject, tense, negation, pronoun=(english, french), ending=object_.ending)
    return make_pair("pronoun", [subject, group], subject)


FAULTS = ("broken", "empty", "heavy", "old", "bad", "small", "expensive", "closed", "tired", "grey")


PLEASED, SORRY = ("love", "buy", "visit"), ("sell", "leave")


def because(pick: random.Random) -> Pair:
    """Draws "The girl loves this house because it is old." ("it" is "elle", for "maison") or a sentence with "but"."""
    verb = _BY_NAME[pick.choice((*PLEASED, *SORRY, "read", "find", "wear", "clean"))]
    noun, subject = _object_noun(pick, verb), draw_third(pick)
    determiner = pick.choice(("the", "this") if verb.state else ("the", "this", "a"))
    object_ = object_phrase(pick, verb, noun, determiner=determiner, adjectives=0)
    tense = draw_tense(pick, subject, ("present", "past", "past"), verb)
    fit = [a for a in adjectives_for(noun) if (a.english in FAULTS) != (verb.english[0] in PLEASED)]
    adjective = pick.choice([a for a in fit if a.english != "new"])
    link = said("because", "parce que") if verb.english[0] in (*PLEASED, *SORRY) else said("but", "mais")
    form = adjective.form(feminine=object_.feminine, plural=object_.plural)
    it = "they" if object_.plural else "it"
    il = ("elle" if object_.feminine else "il") + ("s" if object_.plural else "")
    return make_pair(
        "because",
        [subject, verb_group(verb, subject, tense), object_, link, said(it, il), be(object_, tense), said(adjective.english, form)],
        subject, object_, marks=(*use(verb, noun), (adjective.english, noun.english)),
    )  # fmt: skip


def know(pick: random.Random) -> Pair:
    """Draws "know" with a person, "connaître", or with a fact or the place of something, "savoir"."""
    subject, which = draw_subject(pick, PERSON), pick.randrange(3)
    tense = pick.choice(("present", "present", "past"))
    negation = "not" if pick.random() < 0.3 else ""
    if which == 0:
        noun = pick.choice(nouns_of(PERSON))
        object_ = noun_phrase(pick, noun, adjectives=pick.choice((0, 1)))
        if object_.english[0] in ("a", "an", "some"):
            object_ = noun_phrase(pick, noun, determiner="this")
        verb, english, french = verbs.KNOW_PERSON, [object_], [object_]
    else:
        noun = pick.choice(nouns_of(PERSON if which == 1 else {"keep"}))
        own = ("my", "his", "her", "our") if "ours" in noun.kinds else ()
        determiner = pick.choice(own if "family" in noun.kinds else ("the", "the", *own))
        object_ = noun_phrase(pick, noun, determiner=determiner)
        verb, finite = verbs.KNOW_FACT, be(object_, tense)
        if which == 1:
            adjective = pick.choice([a for a in MOODS if a.english not in {word for word, _ in object_.pairs}])
            form = adjective.form(feminine=object_.feminine, plural=object_.plural)
            english = french = [said("that", "que"), object_, finite, said(adjective.english, form)]
        else:
            where = said("where", "où")
            english, french = [where, object_, finite], [where, finite, object_]
    main = [subject, verb_group(verb, subject, tense, negation)]
    return make_pair("know", [*main, *english], subject, object_, french=[*main, *french])
