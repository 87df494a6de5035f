"""Constructions whose words have several translations, told apart by their context."""

from __future__ import annotations

import random

from jaxformer.demo import lexicon, verbs
from jaxformer.demo.alignment import Part, Word, said, tie
from jaxformer.demo.conjugation import be, draw_negation, draw_tense, english_verb, french_verb, verb_group
from jaxformer.demo.lexicon import Noun
from jaxformer.demo.phrases import (
    OBJECTS,
    PRONOUNS,
    Pair,
    adjectives_for,
    build,
    make_pair,
    noun_phrase,
    nouns_of,
)
from jaxformer.demo.statements import PERSON, TENSES, draw_other, draw_place, draw_subject


def eat_and_drink(pick: random.Random) -> Pair:
    """Draws "The children drink water.": a partitive, which negation turns into "de"."""
    word = pick.choice(tuple(lexicon.MASSES))
    mot, feminine, kind = lexicon.MASSES[word]
    verb = verbs.EAT if kind == "food" else verbs.DRINK
    subject = draw_subject(pick, PERSON)
    tense = draw_tense(pick, subject, TENSES, verb)
    negation = draw_negation(pick, verb, tense, 0.35)
    article = "de" if negation else "de la" if feminine else "de le"
    return make_pair(
        "partitive", [subject, verb_group(verb, subject, tense, negation), said(word, f"{article} {mot}")], subject
    )


def play(pick: random.Random) -> Pair:
    """Draws "She plays the piano.", with "jouer de", or "They play football.", with "jouer à"."""
    music = pick.random() < 0.5
    word = pick.choice(tuple(lexicon.INSTRUMENTS if music else lexicon.SPORTS))
    mot, feminine = (lexicon.INSTRUMENTS if music else lexicon.SPORTS)[word]
    subject = draw_subject(pick, PERSON)
    tense = draw_tense(pick, subject, TENSES, verbs.PLAY)
    negation = draw_negation(pick, verbs.PLAY, tense, 0.2)
    article = "les" if feminine is None else "la" if feminine else "le"
    group = verb_group(verbs.PLAY, subject, tense, negation, preposition="de" if music else "à")
    played = [said("the", article), said(word, mot)] if music else [said(word, f"{article} {mot}")]
    return make_pair("play", [subject, group, *played], subject)


def miss(pick: random.Random) -> Pair:
    """Draws "He misses the train.", with "rater", or "He misses his brother.": "manquer à" has "his brother" as subject."""
    tense = pick.choice(("present", "past", "future"))
    if pick.random() < 0.4:
        subject, verb = draw_subject(pick, PERSON), verbs.MISS_TRAIN
        object_ = noun_phrase(pick, pick.choice(nouns_of(verb.object)), adjectives=pick.choice((0, 1)))
        return make_pair("miss", [subject, verb_group(verb, subject, tense), object_], subject, object_)
    verb, subject = verbs.MISS_PERSON, draw_subject(pick, PERSON)
    name = next((name for name, phrase in PRONOUNS.items() if phrase is subject), "")
    if pick.random() < 0.4:
        object_ = PRONOUNS[draw_other(pick, subject)]
        word = next(OBJECTS[key][0] for key, phrase in PRONOUNS.items() if phrase is object_)
        missed: Part = said(word, object_.french[0])
    else:
        missed = object_ = noun_phrase(pick, pick.choice(nouns_of({"family"})), adjectives=pick.choice((0, 1)))
    # The English verb agrees with the person who misses someone, the French verb with the person who is missed.
    preposition = () if name else (Word("à", "verb"),)
    verb_ = tie(english_verb(verb, subject, tense), [*french_verb(verb, object_, tense), *preposition])
    if name:
        missing = said(subject.english[0], OBJECTS[name][2])
        french = [missed, missing, verb_]
    else:
        missing, french = subject, [missed, verb_, subject]
    return make_pair("miss", [missing, verb_, missed], subject, object_, french=french)


SHORES = (("river", "la", "rivière"), ("lake", "le", "lac"))
BANKS = Noun(
    "bank",
    "banks",
    "banque",
    "banques",
    True,
    frozenset({"work", "wait", "building", "place", "open", "shut"}),
    ("at", "à"),
    "à",
)


def bank(pick: random.Random) -> Pair:
    """Draws "bank" for the edge of a river or lake, "la rive", or for the place that keeps money, "la banque"."""
    subject, tense = draw_subject(pick, PERSON), pick.choice(("present", "past", "future"))
    if pick.random() < 0.5:
        verb = pick.choice([v for v in verbs.INTRANSITIVE if v.object & {"walk", "stage", "wait"}])
        river, article, fleuve = pick.choice(SHORES)
        place = [
            said("on", "sur"),
            said("the", "la"),
            said("bank", "rive"),
            said("of", "de"),
            said("the", article),
            said(river, fleuve),
        ]
    else:
        verb = pick.choice([v for v in verbs.INTRANSITIVE if v.object & {"work", "wait"}])
        place = draw_place(pick, [BANKS])
    negation = draw_negation(pick, verb, tense, 0.2)
    return make_pair("bank", [subject, verb_group(verb, subject, tense, negation), *place], subject)


SEE = next(verb for verb in verbs.TRANSITIVE if verb.infinitive == "voir")
LIGHT = Noun("light", "lights", "lumière", "lumières", True, frozenset({"coloured"}))


def light(pick: random.Random) -> Pair:
    """Draws "light" as a noun, "une lumière", or as an adjective, as in "une boîte légère"."""
    subject, tense = draw_subject(pick, PERSON), pick.choice(("present", "past", "future"))
    if pick.random() < 0.6:
        colors = [
            a for a in adjectives_for(LIGHT) if a.kind == "colour" and a.english not in ("black", "grey", "brown")
        ]
        lamp = build(
            LIGHT, [pick.choice(colors)] if pick.random() < 0.6 else [], determiner="the", plural=pick.random() < 0.4
        )
        place = noun_phrase(
            pick, pick.choice(nouns_of({"building", "room", "vehicle"})), determiner="the", adjectives=0, plural=False
        )
        seen, verb = [lamp, said("of", "de"), place], SEE
    else:
        noun = pick.choice(nouns_of({"weigh"}))
        thing = build(noun, [a for a in adjectives_for(noun) if a.english == "light"], determiner=pick.choice(("the", "this", "a")),
                      plural=pick.random() < 0.3)  # fmt: skip
        seen = [thing]
        verb = pick.choice([v for v in verbs.TRANSITIVE if v.object & noun.kinds & {"carry", "buy", "paint", "keep"}])
        tense = draw_tense(pick, subject, (tense,), verb)
    return make_pair("light", [subject, verb_group(verb, subject, tense), *seen], subject)


SPRUNG = nouns_of({"thing"}, lambda n: n.english in ("watch", "bed", "door", "lamp"))


def spring(pick: random.Random) -> Pair:
    """Draws "spring" as a season, "le printemps", as water, "la source", or as a part of a watch, "le ressort"."""
    which = pick.randrange(3)
    subject, tense = draw_subject(pick, PERSON), pick.choice(("present", "past", "future"))
    if which == 0:
        verb = pick.choice([v for v in verbs.INTRANSITIVE if not v.state])
        season = [said("in", "à"), said("spring", "le printemps")]
        return make_pair("spring", [subject, verb_group(verb, subject, tense), *season], subject)
    if which == 1:
        place = draw_place(
            pick, nouns_of({"ground"}, lambda n: n.english in ("forest", "garden", "park", "village", "island"))
        )
        drunk = [said("the", "la"), said("water", "eau"), said("of", "de"), said("the", "la"), said("spring", "source")]
        return make_pair("spring", [subject, verb_group(verbs.DRINK, subject, tense), *drunk, *place], subject)
    thing = noun_phrase(
        pick,
        pick.choice(SPRUNG),
        plural=False,
        determiner=pick.choice(("the", "my", "his", "this", "her", "our", "your")),
    )
    past, negative = pick.random() < 0.4, pick.random() < 0.3
    broken = be(PRONOUNS["he"], "past" if past else "present", "not" if negative else "")
    whole = [said("the", "le"), said("spring", "ressort"), said("of", "de"), thing, broken, said("broken", "cassé")]
    return make_pair("spring", whole, thing)
