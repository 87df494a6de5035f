"""Questions: with est-ce que, and with the verb before its subject."""

from __future__ import annotations

import dataclasses
import random

from jaxformer.demo import verbs
from jaxformer.demo.alignment import Part, Word, said, tie
from jaxformer.demo.conjugation import be, english_be, english_do, french_verb, inverted, verb_group
from jaxformer.demo.lexicon import ADJECTIVES
from jaxformer.demo.phrases import (
    PRONOUNS,
    Pair,
    Phrase,
    make_pair,
    noun_phrase,
    nouns_of,
    object_phrase,
    predicate,
)
from jaxformer.demo.statements import PERSON, draw_place, draw_subject, use
from jaxformer.demo.verbs import BE, HAVE, Verb

WHY = ((), (), (said("why", "pourquoi"),), (said("when", "quand"),))
ASKING = [verb for verb in verbs.TRANSITIVE if not verb.state]


def do_question(pick: random.Random) -> Pair:
    """Draws a question such as "Why does the girl read the letter?"."""
    verb, tense = pick.choice(ASKING), pick.choice(("present", "past"))
    subject, noun = draw_subject(pick, verb.subject), pick.choice(nouns_of(verb.object))
    object_ = object_phrase(pick, verb, noun, adjectives=pick.choice((0, 0, 1)))
    asked = [*pick.choice(WHY), _do_question(verb, subject, tense), object_]
    return make_pair("question", asked, subject, object_, end="?", marks=use(verb, noun))


def _do_question(verb: Verb, subject: Phrase, tense: str) -> Part:
    return tie(
        [english_do(subject, tense), subject, Word(verb.english[0], "verb")],
        [Word("est-ce que", "tense"), subject, *french_verb(verb, subject, tense)],
    )


def _inverted_question(english: str, base: str, pronoun: Phrase, french: tuple[Word, ...]) -> Part:
    """Ties an auxiliary, a pronoun and a verb to a French verb before its pronoun."""
    return tie([Word(english, "tense"), Word(pronoun.english[0], "subject"), Word(base, "verb")], french)


def _asked(pick: random.Random) -> Phrase:
    return PRONOUNS[pick.choice(("we", "you", "he", "she", "they"))]


def what(pick: random.Random) -> Pair:
    """Draws "What is she reading?", "Que lit-elle ?", or "What did he eat?", "Qu'a-t-il mangé ?"."""
    verb = pick.choice([v for v in ASKING if v.lasting and "person" not in v.object])
    subject, tense = _asked(pick), pick.choice(("present", "progressive", "past", "future"))
    if tense in ("present", "progressive"):
        first, form = english_be(subject, "present" if tense == "present" else "past"), verb.english[4]
    else:
        first, form = "will" if tense == "future" else "did", verb.english[0]
    asked = _inverted_question(first, form, subject, inverted(verb, subject, tense))
    return make_pair("what", [said("what", "que"), asked], end="?")


def be_question(pick: random.Random) -> Pair:
    """Draws "Where are my keys?", "Is she tired?" or "Were the shops closed?"."""
    tense = pick.choice(("present", "past"))
    if pick.random() < 0.4:
        noun = pick.choice(nouns_of({"keep", "worker", "animal", "building"}, lambda n: "single" not in n.kinds))
        thing = noun_phrase(
            pick,
            noun,
            adjectives=pick.choice((0, 1)),
            determiner=pick.choice(("the", "the", "my", "your", "their")) if "ours" in noun.kinds else "the",
        )
        return make_pair("where", [said("where", "où"), be(thing, tense), thing], thing, end="?")
    if pick.random() < 0.4:
        subject = PRONOUNS[pick.choice(("he", "she", "they"))]
        adjective = pick.choice([a for a in ADJECTIVES if a.kind in ("mood", "origin")])
        verb = tie(
            [Word(english_be(subject, tense), "tense"), Word(subject.english[0], "subject")],
            inverted(BE, subject, tense),
        )
        english, french = [verb], [verb]
    else:
        noun = pick.choice(nouns_of({"worker", "building", "thing", "clothes", "vehicle"}))
        subject = noun_phrase(
            pick, noun, determiner=pick.choice(("the", "this", "your")) if "ours" in noun.kinds else "the", adjectives=0
        )
        adjective = predicate(pick, noun, subject)
        pronoun = PRONOUNS["they" if subject.plural else "he"]
        pronoun = dataclasses.replace(
            pronoun, french=(("elle" if subject.feminine else "il") + ("s" if subject.plural else ""),)
        )
        verb = tie([Word(english_be(subject, tense), "tense")], inverted(BE, pronoun, tense))
        english, french = [verb, subject], [subject, verb]
    form = said(adjective.english, adjective.form(feminine=subject.feminine, plural=subject.plural))
    marks = ((adjective.english, subject.noun.english),) if subject.noun else ()
    return make_pair("is it", [*english, form], subject, french=[*french, form], end="?", marks=marks)


def who(pick: random.Random) -> Pair:
    """Draws a question such as "Who broke the window?"."""
    verb, tense = pick.choice(ASKING), pick.choice(("present", "past", "past", "future"))
    noun, someone = pick.choice(nouns_of(verb.object)), PRONOUNS["he"]
    object_ = object_phrase(pick, verb, noun, adjectives=pick.choice((0, 0, 1)))
    asked = [said("who", "qui"), verb_group(verb, someone, tense), object_]
    return make_pair("who", asked, object_, end="?", marks=use(verb, noun))


COUNTED = ("see", "buy", "sell", "eat", "read", "write", "lose", "break", "paint", "visit", "wear")
COUNTING = [verb for verb in ASKING if verb.english[0] in COUNTED]


def how_many(pick: random.Random) -> Pair:
    """Draws "How many apples did she eat?", "Combien de pommes a-t-elle mangées ?": the participle agrees."""
    verb = pick.choice(COUNTING)
    noun = pick.choice(nouns_of(verb.object, lambda n: "single" not in n.kinds and "family" not in n.kinds))
    subject, tense = _asked(pick), pick.choice(("past", "past", "future"))
    ending = ("e" if noun.feminine else "") + "s"
    first = "did" if tense == "past" else "will"
    asked = _inverted_question(first, verb.english[0], subject, inverted(verb, subject, tense, ending=ending))
    counted = [said("how many", "combien de"), said(noun.english_plural, noun.french_plural)]
    return make_pair("how many", [*counted, asked], end="?", marks=use(verb, noun))


def where_does(pick: random.Random) -> Pair:
    """Draws "Where does he work?", "Où travaille-t-il ?", or "Does she have a brother?", "A-t-elle un frère ?"."""
    subject = _asked(pick)
    if pick.random() < 0.5:
        verb = pick.choice([v for v in verbs.INTRANSITIVE if not v.state])
        tense = pick.choice(("present", "past", "future"))
        first = "will" if tense == "future" else english_do(subject, tense)
        asked = _inverted_question(first, verb.english[0], subject, inverted(verb, subject, tense))
        return make_pair("where", [said("where", "où"), asked], end="?")
    noun = pick.choice(nouns_of({"ours"}, lambda n: "single" not in n.kinds and "place" not in n.kinds))
    thing = noun_phrase(pick, noun, determiner="a", plural=False)
    asked = _inverted_question(english_do(subject, "present"), "have", subject, inverted(HAVE, subject, "present"))
    return make_pair("has", [asked, thing], thing, end="?")


def works_there(pick: random.Random) -> Pair:
    """Draws a question such as "Does your uncle work at the hospital?"."""
    verb = pick.choice([v for v in verbs.INTRANSITIVE if not v.state])
    subject, tense = draw_subject(pick, PERSON), pick.choice(("present", "past"))
    preposition, place = draw_place(pick, nouns_of(verb.object))
    asked = [*pick.choice(WHY), _do_question(verb, subject, tense), preposition, place]
    return make_pair("question", asked, subject, place, end="?")
