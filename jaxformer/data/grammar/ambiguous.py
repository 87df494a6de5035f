"""Constructions whose words have several translations, told apart by what stands around them."""

from __future__ import annotations

import random

from jaxformer.data.grammar import lexicon
from jaxformer.data.grammar.lexicon import BE, Verb
from jaxformer.data.grammar.phrases import PRONOUNS, Phrase, Words, english_verb, french_verb, noun_phrase, nouns_of
from jaxformer.data.grammar.sentences import Pair, _inside, _pair, _subject, _third

TENSES = ("present", "past", "progressive", "future")


def eat_and_drink(pick: random.Random) -> Pair:
    """The children drink water: a partitive, which negation turns into "de"."""
    word = pick.choice(list(lexicon.MASSES))
    mot, feminine, kind = lexicon.MASSES[word]
    verb = lexicon.EAT if kind == "food" else lexicon.DRINK
    subject, tense, negative = _subject(pick, "being"), pick.choice(TENSES), pick.random() < 0.35
    article: Words = ("de",) if negative else ("de", "la" if feminine else "le")
    return _pair(
        "partitive",
        (*subject.english, *english_verb(verb, subject, tense, negative=negative), word),
        (*subject.french, *french_verb(verb, subject, tense, negation="pas" if negative else ""), *article, mot),
        subject,
    )


def play(pick: random.Random) -> Pair:
    """To play the piano is jouer de, to play football jouer à."""
    music = pick.random() < 0.5
    word = pick.choice(list(lexicon.INSTRUMENTS if music else lexicon.SPORTS))
    mot, feminine = (lexicon.INSTRUMENTS if music else lexicon.SPORTS)[word]
    subject, tense, negative = _subject(pick, "person"), pick.choice(TENSES), pick.random() < 0.2
    article = "les" if feminine is None else "la" if feminine else "le"
    return _pair(
        "play",
        (*subject.english, *english_verb(lexicon.PLAY, subject, tense, negative=negative), *(["the"] if music else []), word),
        (*subject.french, *french_verb(lexicon.PLAY, subject, tense, negation="pas" if negative else ""), "de" if music else "à", article, mot),
        subject,
    )  # fmt: skip


def know(pick: random.Random) -> Pair:
    """To know somebody is connaître, to know that something is so savoir."""
    subject, negative = _subject(pick, "person"), pick.random() < 0.3
    negation = "pas" if negative else ""
    if pick.random() < 0.5:
        object_ = noun_phrase(pick, pick.choice(nouns_of("person")))
        verb, english, french, used = lexicon.KNOW_PERSON, object_.english, object_.french, (subject, object_)
    else:
        who, adjective = _third(pick, "person"), pick.choice([a for a in lexicon.ADJECTIVES if a.kind == "mood"])
        verb, used = lexicon.KNOW_FACT, (subject, who)
        english = ("that", *who.english, "are" if who.plural else "is", adjective.english)
        form = adjective.form(feminine=who.feminine, plural=who.plural)
        french = ("que", *who.french, BE.present[4 if who.plural else 1], form)
    return _pair(
        "know",
        (*subject.english, *english_verb(verb, subject, "present", negative=negative), *english),
        (*subject.french, *french_verb(verb, subject, "present", negation=negation), *french),
        *used,
    )


def miss(pick: random.Random) -> Pair:
    """To miss a train is rater; to miss one's brother turns the sentence round: mon frère manque à ..."""
    subject = noun_phrase(pick, pick.choice(nouns_of("person")))
    tense = pick.choice(("present", "past", "future"))
    if pick.random() < 0.5:
        object_ = noun_phrase(pick, pick.choice(nouns_of("vehicle")), adjectives=pick.choice((0, 1)))
        verb: Verb = lexicon.MISS_TRAIN
        french = (*subject.french, *french_verb(verb, subject, tense), *object_.french)
    else:
        object_ = noun_phrase(pick, pick.choice(nouns_of("family")), adjectives=pick.choice((0, 1)))
        verb = lexicon.MISS_PERSON
        french = (*object_.french, *french_verb(verb, object_, tense), "à", *subject.french)
    return _pair(
        "miss", (*subject.english, *english_verb(verb, subject, tense), *object_.english), french, subject, object_
    )


def bank(pick: random.Random) -> Pair:
    """The bank of a river is la rive, the one that keeps money la banque."""
    subject, tense = _subject(pick, "person"), pick.choice(("present", "past", "future"))
    if pick.random() < 0.5:
        verb = pick.choice(lexicon.INTRANSITIVE)
        river, fleuve = pick.choice((("river", ("de", "la", "rivière")), ("lake", ("de", "le", "lac"))))
        english: Words = (*english_verb(verb, subject, tense), "on", "the", "bank", "of", "the", river)
        return _pair(
            "bank",
            (*subject.english, *english),
            (*subject.french, *french_verb(verb, subject, tense), "sur", "la", "rive", *fleuve),
            subject,
        )
    verb = pick.choice([v for v in lexicon.INTRANSITIVE if v.infinitive in ("travailler", "attendre")])
    adjective, forms = pick.choice(
        (("new", ("nouvelle", True)), ("big", ("grande", True)), ("French", ("française", False)), ("", ("", True)))
    )
    word, before = forms
    place = ("la", *([word] if word and before else []), "banque", *([word] if word and not before else []))
    return _pair(
        "bank",
        (*subject.english, *english_verb(verb, subject, tense), "at", "the", *([adjective] if adjective else []), "bank"),
        (*subject.french, *french_verb(verb, subject, tense), "à", *place),
        subject,
    )  # fmt: skip


def light(pick: random.Random) -> Pair:
    """A light is une lumière; a light box is une boîte légère."""
    subject, tense = _subject(pick, "person"), pick.choice(("present", "past", "future"))
    see = next(v for v in lexicon.TRANSITIVE if v.infinitive == "voir")
    room, piece = pick.choice(
        (("kitchen", "cuisine"), ("street", "rue"), ("station", "gare"), ("church", "église"), ("castle", "château"))
    )
    article = "le" if piece == "château" else "la"
    colour, couleur = pick.choice(
        (("white", "blanche"), ("red", "rouge"), ("green", "verte"), ("yellow", "jaune"), ("", ""))
    )
    return _pair(
        "light",
        (*subject.english, *english_verb(see, subject, tense), "the", *([colour] if colour else []), "light", "of", "the", room),
        (*subject.french, *french_verb(see, subject, tense), "la", "lumière", *([couleur] if couleur else []), "de", article, piece),
        subject,
    )  # fmt: skip


def spring(pick: random.Random) -> Pair:
    """The spring is le printemps as a season, la source in the forest, le ressort of a watch."""
    which = pick.randrange(3)
    if which == 0:
        verb, subject = pick.choice(lexicon.INTRANSITIVE), noun_phrase(pick, pick.choice(nouns_of("person")))
        tense = pick.choice(("present", "past", "future"))
        return _pair("spring", (*subject.english, *english_verb(verb, subject, tense), "in", "spring"),
                     (*subject.french, *french_verb(verb, subject, tense), "à", "le", "printemps"), subject)  # fmt: skip
    if which == 1:
        subject, place = _subject(pick, "being"), noun_phrase(pick, _inside(pick), determiner="the", plural=False)
        tense = pick.choice(("present", "past", "future"))
        return _pair("spring", (*subject.english, *english_verb(lexicon.DRINK, subject, tense), "the", "water", "of", "the", "spring", "in", *place.english),
                     (*subject.french, *french_verb(lexicon.DRINK, subject, tense), "la", "eau", "de", "la", "source", "dans", *place.french), subject, place)  # fmt: skip
    noun = pick.choice([n for n in lexicon.NOUNS if n.english in ("watch", "bed")])
    thing = noun_phrase(
        pick, noun, plural=False, determiner=pick.choice(["the", "my", "his", "this", "her", "our", "your"])
    )
    past, negative = pick.random() < 0.4, pick.random() < 0.3
    finite = "était" if past else "est"
    verb = ("ne", finite, "pas") if negative else (finite,)
    return _pair("spring", ("the", "spring", "of", *thing.english, "was" if past else "is", *(["not"] if negative else []), "broken"),
                 ("le", "ressort", "de", *thing.french, *verb, "cassé"), thing)  # fmt: skip


def owner(pick: random.Random) -> Pair:
    """Her brother has a blue hat: the possessive agrees with what is possessed."""
    subject = noun_phrase(pick, pick.choice(nouns_of("family")), determiner=pick.choice(["his", "her", "my", "our"]))
    object_: Phrase = noun_phrase(pick, pick.choice(nouns_of("thing")), determiner=pick.choice(["a", "his", "her", "my", "two", "three"]),
                                  plural=None)  # fmt: skip
    tense = pick.choice(("present", "future", "progressive"))
    english = english_verb(lexicon.HAVE, subject, "past" if tense == "progressive" else tense)
    return _pair("possession", (*subject.english, *english, *object_.english),
                 (*subject.french, *french_verb(lexicon.HAVE, subject, tense), *object_.french), subject, object_)  # fmt: skip


def someone_likes(pick: random.Random) -> Pair:
    """She is my friend's neighbour: "is" and a noun, no adjective to agree."""
    subject = PRONOUNS[pick.choice(["he", "she"])]
    noun = pick.choice([n for n in nouns_of("person") if n.feminine == subject.feminine and "worker" in n.kinds])
    owner_ = noun_phrase(pick, pick.choice(nouns_of("person")), determiner=pick.choice(["the", "my", "his", "our"]))
    past = pick.random() < 0.4
    return _pair("identity", (*subject.english, "was" if past else "is", "the", noun.english, "of", *owner_.english),
                 (*subject.french, "était" if past else "est", "la" if noun.feminine else "le", noun.french, "de", *owner_.french), owner_)  # fmt: skip
