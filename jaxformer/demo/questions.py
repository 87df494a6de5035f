"""Questions: with est-ce que, and with the verb before its subject."""

from __future__ import annotations

import random

from jaxformer.demo import verbs
from jaxformer.demo.conjugation import english_be, english_verb, french_verb, inverted, singular
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
from jaxformer.demo.verbs import BE, HAVE

WHY = (("", ()), ("", ()), ("why", ("pourquoi",)), ("when", ("quand",)))
ASKING = [verb for verb in verbs.TRANSITIVE if not verb.state]


def do_question(pick: random.Random) -> Pair:
    """Draws a question such as "Why does the girl read the letter?"."""
    verb, tense = pick.choice(ASKING), pick.choice(("present", "past"))
    subject, noun = draw_subject(pick, verb.subject), pick.choice(nouns_of(verb.object))
    object_ = object_phrase(pick, verb, noun, adjectives=pick.choice((0, 0, 1)))
    word, mot = pick.choice(WHY)
    return make_pair(
        "question",
        (*word.split(), _do(subject, tense), *subject.english, verb.english[0], *object_.english),
        (*mot, "est-ce", "que", *subject.french, *french_verb(verb, subject, tense), *object_.french),
        subject, object_, end="?", marks=use(verb, noun),
    )  # fmt: skip


def _do(subject: Phrase, tense: str) -> str:
    return "did" if tense == "past" else "does" if singular(subject) else "do"


def _asked(pick: random.Random) -> Phrase:
    return PRONOUNS[pick.choice(("we", "you", "he", "she", "they"))]


def what(pick: random.Random) -> Pair:
    """Draws "What is she reading?", "Que lit-elle ?", or "What did he eat?", "Qu'a-t-il mangé ?"."""
    verb = pick.choice([v for v in ASKING if v.lasting and "person" not in v.object])
    subject, tense = _asked(pick), pick.choice(("present", "progressive", "past", "future"))
    if tense in ("present", "progressive"):
        english = (english_be(subject, "present" if tense == "present" else "past"), *subject.english, verb.english[4])
    else:
        english = ("will" if tense == "future" else "did", *subject.english, verb.english[0])
    return make_pair("what", ("what", *english), ("que", *inverted(verb, subject, tense)), end="?")


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
        return make_pair("where", ("where", english_be(thing, tense), *thing.english),
                         ("où", *french_verb(BE, thing, tense), *thing.french), thing, end="?")  # fmt: skip
    if pick.random() < 0.4:
        subject = PRONOUNS[pick.choice(("he", "she", "they"))]
        adjective = pick.choice([a for a in ADJECTIVES if a.kind in ("mood", "origin")])
        verb, who = inverted(BE, subject, tense), ()
    else:
        noun = pick.choice(nouns_of({"worker", "building", "thing", "clothes", "vehicle"}))
        subject = noun_phrase(
            pick, noun, determiner=pick.choice(("the", "this", "your")) if "ours" in noun.kinds else "the", adjectives=0
        )
        adjective = predicate(pick, noun, subject)
        il = ("elle" if subject.feminine else "il") + ("s" if subject.plural else "")
        pronoun = Phrase((), (il,), subject.feminine, subject.plural)
        verb, who = inverted(BE, pronoun, tense), subject.french
    form = adjective.form(feminine=subject.feminine, plural=subject.plural)
    marks = ((adjective.english, subject.noun.english),) if subject.noun else ()
    return make_pair("is it", (english_be(subject, tense), *subject.english, adjective.english),
                     (*who, *verb, form), subject, end="?", marks=marks)  # fmt: skip


def who(pick: random.Random) -> Pair:
    """Draws a question such as "Who broke the window?"."""
    verb, tense = pick.choice(ASKING), pick.choice(("present", "past", "past", "future"))
    noun, someone = pick.choice(nouns_of(verb.object)), PRONOUNS["he"]
    object_ = object_phrase(pick, verb, noun, adjectives=pick.choice((0, 0, 1)))
    return make_pair("who", ("who", *english_verb(verb, someone, tense), *object_.english),
                     ("qui", *french_verb(verb, someone, tense), *object_.french), object_, end="?", marks=use(verb, noun))  # fmt: skip


COUNTED = ("see", "buy", "sell", "eat", "read", "write", "lose", "break", "paint", "visit", "wear")
COUNTING = [verb for verb in ASKING if verb.english[0] in COUNTED]


def how_many(pick: random.Random) -> Pair:
    """Draws "How many apples did she eat?", "Combien de pommes a-t-elle mangées ?": the participle agrees."""
    verb = pick.choice(COUNTING)
    noun = pick.choice(nouns_of(verb.object, lambda n: "single" not in n.kinds and "family" not in n.kinds))
    subject, tense = _asked(pick), pick.choice(("past", "past", "future"))
    ending = ("e" if noun.feminine else "") + "s"
    return make_pair(
        "how many",
        ("how", "many", noun.english_plural, "did" if tense == "past" else "will", *subject.english, verb.english[0]),
        ("combien", "de", noun.french_plural, *inverted(verb, subject, tense, ending=ending)),
        end="?", marks=use(verb, noun),
    )  # fmt: skip


def where_does(pick: random.Random) -> Pair:
    """Draws "Where does he work?", "Où travaille-t-il ?", or "Does she have a brother?", "A-t-elle un frère ?"."""
    subject = _asked(pick)
    if pick.random() < 0.5:
        verb = pick.choice([v for v in verbs.INTRANSITIVE if not v.state])
        tense = pick.choice(("present", "past", "future"))
        first = "will" if tense == "future" else _do(subject, tense)
        return make_pair("where", ("where", first, *subject.english, verb.english[0]),
                         ("où", *inverted(verb, subject, tense)), end="?")  # fmt: skip
    noun = pick.choice(nouns_of({"ours"}, lambda n: "single" not in n.kinds and "place" not in n.kinds))
    thing = noun_phrase(pick, noun, determiner="a", plural=False)
    return make_pair("has", (_do(subject, "present"), *subject.english, "have", *thing.english),
                     (*inverted(HAVE, subject, "present"), *thing.french), thing, end="?")  # fmt: skip


def works_there(pick: random.Random) -> Pair:
    """Draws a question such as "Does your uncle work at the hospital?"."""
    verb = pick.choice([v for v in verbs.INTRANSITIVE if not v.state])
    subject, tense = draw_subject(pick, PERSON), pick.choice(("present", "past"))
    place, english, french = draw_place(pick, nouns_of(verb.object))
    word, mot = pick.choice(WHY)
    return make_pair(
        "question",
        (*word.split(), _do(subject, tense), *subject.english, verb.english[0], *english),
        (*mot, "est-ce", "que", *subject.french, *french_verb(verb, subject, tense), *french),
        subject, place, end="?",
    )  # fmt: skip
