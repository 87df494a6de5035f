"""Constructions whose words have several translations, told apart by their context."""

from __future__ import annotations

import random

from jaxformer.demo import lexicon, verbs
from jaxformer.demo.conjugation import NEGATIONS, draw_negation, draw_tense, english_verb, french_verb
from jaxformer.demo.lexicon import Noun
from jaxformer.demo.phrases import (
    OBJECTS,
    PRONOUNS,
    Pair,
    Words,
    adjectives_for,
    build,
    make_pair,
    noun_phrase,
    nouns_of,
)
from jaxformer.demo.statements import PERSON, TENSES, draw_other, draw_place, draw_subject
from jaxformer.demo.verbs import BE


def eat_and_drink(pick: random.Random) -> Pair:
    """The children drink water: a partitive, which negation turns into "de"."""
    word = pick.choice(tuple(lexicon.MASSES))
    mot, feminine, kind = lexicon.MASSES[word]
    verb = verbs.EAT if kind == "food" else verbs.DRINK
    subject = draw_subject(pick, PERSON)
    tense = draw_tense(pick, subject, TENSES, verb)
    negation = draw_negation(pick, verb, tense, 0.35)
    article: Words = ("de",) if negation else ("de", "la" if feminine else "le")
    return make_pair(
        "partitive",
        (*subject.english, *english_verb(verb, subject, tense, negation), word),
        (*subject.french, *french_verb(verb, subject, tense, negation=NEGATIONS.get(negation)), *article, mot),
        subject,
    )


def play(pick: random.Random) -> Pair:
    """Playing the piano is jouer de, playing football jouer à."""
    music = pick.random() < 0.5
    word = pick.choice(tuple(lexicon.INSTRUMENTS if music else lexicon.SPORTS))
    mot, feminine = (lexicon.INSTRUMENTS if music else lexicon.SPORTS)[word]
    subject = draw_subject(pick, PERSON)
    tense = draw_tense(pick, subject, TENSES, verbs.PLAY)
    negation = draw_negation(pick, verbs.PLAY, tense, 0.2)
    article = "les" if feminine is None else "la" if feminine else "le"
    english = (*english_verb(verbs.PLAY, subject, tense, negation), *(["the"] if music else []), word)
    french = (
        *french_verb(verbs.PLAY, subject, tense, negation=NEGATIONS.get(negation)),
        "de" if music else "à",
        article,
        mot,
    )
    return make_pair("play", (*subject.english, *english), (*subject.french, *french), subject)


def miss(pick: random.Random) -> Pair:
    """Missing a train is rater; missing one's brother turns the sentence round: mon frère manque à ..., me manque."""
    tense = pick.choice(("present", "past", "future"))
    if pick.random() < 0.4:
        subject, verb = draw_subject(pick, PERSON), verbs.MISS_TRAIN
        object_ = noun_phrase(pick, pick.choice(nouns_of(verb.object)), adjectives=pick.choice((0, 1)))
        return make_pair("miss", (*subject.english, *english_verb(verb, subject, tense), *object_.english),
                         (*subject.french, *french_verb(verb, subject, tense), *object_.french), subject, object_)  # fmt: skip
    verb, subject = verbs.MISS_PERSON, draw_subject(pick, PERSON)
    name = next((name for name, phrase in PRONOUNS.items() if phrase is subject), "")
    if pick.random() < 0.4:
        object_ = PRONOUNS[draw_other(pick, subject)]
        english: Words = (next(OBJECTS[key][0] for key, phrase in PRONOUNS.items() if phrase is object_),)
    else:
        object_ = noun_phrase(pick, pick.choice(nouns_of({"family"})), adjectives=pick.choice((0, 1)))
        english = object_.english
    clitic, to = ((OBJECTS[name][2],), ()) if name else ((), ("à", *subject.french))
    return make_pair("miss", (*subject.english, *english_verb(verb, subject, tense), *english),
                     (*object_.french, *french_verb(verb, object_, tense, clitic=clitic), *to), subject, object_)  # fmt: skip


SHORES = (("river", ("de", "la", "rivière")), ("lake", ("de", "le", "lac")))
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
    """The bank of a river is la rive, the one that keeps money is la banque."""
    subject, tense = draw_subject(pick, PERSON), pick.choice(("present", "past", "future"))
    if pick.random() < 0.5:
        verb = pick.choice([v for v in verbs.INTRANSITIVE if v.object & {"walk", "stage", "wait"}])
        river, fleuve = pick.choice(SHORES)
        english: Words = ("on", "the", "bank", "of", "the", river)
        french: Words = ("sur", "la", "rive", *fleuve)
    else:
        verb = pick.choice([v for v in verbs.INTRANSITIVE if v.object & {"work", "wait"}])
        _, english, french = draw_place(pick, [BANKS])
    negation = draw_negation(pick, verb, tense, 0.2)
    return make_pair(
        "bank",
        (*subject.english, *english_verb(verb, subject, tense, negation), *english),
        (*subject.french, *french_verb(verb, subject, tense, negation=NEGATIONS.get(negation)), *french),
        subject,
    )


SEE = next(verb for verb in verbs.TRANSITIVE if verb.infinitive == "voir")
LIGHT = Noun("light", "lights", "lumière", "lumières", True, frozenset({"coloured"}))


def light(pick: random.Random) -> Pair:
    """A light is une lumière; a light box is une boîte légère."""
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
        english, french = (*lamp.english, "of", *place.english), (*lamp.french, "de", *place.french)
        verb = SEE
    else:
        noun = pick.choice(nouns_of({"weigh"}))
        thing = build(noun, [a for a in adjectives_for(noun) if a.english == "light"], determiner=pick.choice(("the", "this", "a")),
                      plural=pick.random() < 0.3)  # fmt: skip
        english, french = thing.english, thing.french
        verb = pick.choice([v for v in verbs.TRANSITIVE if v.object & noun.kinds & {"carry", "buy", "paint", "keep"}])
        tense = draw_tense(pick, subject, (tense,), verb)
    return make_pair("light", (*subject.english, *english_verb(verb, subject, tense), *english),
                     (*subject.french, *french_verb(verb, subject, tense), *french), subject)  # fmt: skip


SPRUNG = nouns_of({"thing"}, lambda n: n.english in ("watch", "bed", "door", "lamp"))


def spring(pick: random.Random) -> Pair:
    """The spring is le printemps as a season, la source in the forest, le ressort of a watch."""
    which = pick.randrange(3)
    subject, tense = draw_subject(pick, PERSON), pick.choice(("present", "past", "future"))
    if which == 0:
        verb = pick.choice([v for v in verbs.INTRANSITIVE if not v.state])
        return make_pair("spring", (*subject.english, *english_verb(verb, subject, tense), "in", "spring"),
                         (*subject.french, *french_verb(verb, subject, tense), "à", "le", "printemps"), subject)  # fmt: skip
    if which == 1:
        _, english, french = draw_place(
            pick, nouns_of({"ground"}, lambda n: n.english in ("forest", "garden", "park", "village", "island"))
        )
        return make_pair("spring", (*subject.english, *english_verb(verbs.DRINK, subject, tense), "the", "water", "of", "the", "spring", *english),
                         (*subject.french, *french_verb(verbs.DRINK, subject, tense), "la", "eau", "de", "la", "source", *french), subject)  # fmt: skip
    thing = noun_phrase(
        pick,
        pick.choice(SPRUNG),
        plural=False,
        determiner=pick.choice(("the", "my", "his", "this", "her", "our", "your")),
    )
    past, negative = pick.random() < 0.4, pick.random() < 0.3
    spring_ = PRONOUNS["he"]
    finite = french_verb(BE, spring_, "past" if past else "present", negation="pas" if negative else None)
    return make_pair("spring", ("the", "spring", "of", *thing.english, "was" if past else "is", *(["not"] if negative else []), "broken"),
                     ("le", "ressort", "de", *thing.french, *finite, "cassé"), thing)  # fmt: skip
