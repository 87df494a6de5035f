"""Constructions of one clause: each draws a sentence and its translation."""

from __future__ import annotations

import random
from collections.abc import Sequence

from jaxformer.demo import lexicon, verbs
from jaxformer.demo.alignment import Part, Word, said, tie
from jaxformer.demo.conjugation import (
    BARE,
    be,
    draw_negation,
    draw_tense,
    english_be,
    english_verb,
    french_verb,
    verb_group,
)
from jaxformer.demo.lexicon import NOUNS, Noun
from jaxformer.demo.phrases import (
    OBJECTS,
    PRONOUNS,
    Pair,
    Phrase,
    both,
    definite,
    make_pair,
    noun_phrase,
    nouns_of,
    object_phrase,
    predicate,
)
from jaxformer.demo.verbs import BE, HAVE, Verb

TENSES = ("present", "present", "past", "past", "progressive", "future")
PERSON = frozenset({"person"})
WHEN = {
    "past": (said("yesterday", "hier"),),
    "future": (said("tomorrow", "demain"),),
    "present": (said("every", "tous les"), said("day", "jours")),
}


def draw_subject(pick: random.Random, kinds: frozenset[str]) -> Phrase:
    """Draws a subject: sometimes a pronoun, mostly a person, otherwise any noun of the classes `kinds`."""
    if pick.random() < 0.25:
        return PRONOUNS[pick.choice(tuple(PRONOUNS))]
    return noun_phrase(pick, pick.choice(nouns_of(PERSON if pick.random() < 0.7 else kinds)))


def draw_third(pick: random.Random, kinds: frozenset[str] = PERSON) -> Phrase:
    """Draws a subject that shows its gender and number, so that other words can agree with it."""
    if pick.random() < 0.2:
        return PRONOUNS[pick.choice(("he", "she", "they"))]
    return noun_phrase(pick, pick.choice(nouns_of(kinds)))


def use(verb: Verb, noun: Noun) -> tuple[tuple[str, str], ...]:
    """Returns the combination of a verb and its object, by which the corpus is split."""
    return ((verb.english[0], noun.english),)


def action(pick: random.Random) -> Pair:
    """Draws a sentence such as "The old man does not see the white houses."."""
    verb = pick.choice(verbs.TRANSITIVE)
    subject, noun = draw_subject(pick, verb.subject), pick.choice(nouns_of(verb.object))
    tense = draw_tense(pick, subject, TENSES, verb)
    negation = draw_negation(pick, verb, tense, 0.25)
    object_ = object_phrase(pick, verb, noun, negated=bool(negation))
    return make_pair(
        "action",
        [subject, verb_group(verb, subject, tense, negation), object_],
        subject, object_, marks=use(verb, noun),
    )  # fmt: skip


def state(pick: random.Random) -> Pair:
    """Draws "The doors of the big house are not green.": the adjective agrees with a noun some words away."""
    subject = _described(pick)
    noun = subject.noun or NOUNS[0]
    tense, negative = pick.choice(("present", "present", "past")), pick.random() < 0.25
    adjective = predicate(pick, noun, subject)
    form = adjective.form(feminine=subject.feminine, plural=subject.plural)
    return make_pair(
        "state",
        [subject, be(subject, tense, "not" if negative else ""), said(adjective.english, form)],
        subject, marks=((adjective.english, noun.english),),
    )  # fmt: skip


def _described(pick: random.Random) -> Phrase:
    """Draws a noun phrase; half of them have "of" and a second noun, which does not determine the agreement."""
    if pick.random() < 0.5:
        noun = pick.choice(nouns_of({"person", "animal", "building", "vehicle", "thing", "food", "text", "clothes"}))
        return noun_phrase(pick, noun, determiner=definite(pick, noun))
    head = noun_phrase(pick, pick.choice(nouns_of({"ours"}, lambda n: "family" not in n.kinds)), determiner="the",
                       adjectives=pick.choice((0, 0, 1)))  # fmt: skip
    owner = draw_owner(pick)
    whole = [head, said("of", "de"), owner]
    part = tie(whole, whole)
    return Phrase(
        part.english,
        part.french,
        part.links,
        head.feminine,
        head.plural,
        pairs=head.pairs + owner.pairs,
        noun=head.noun,
    )


def draw_owner(pick: random.Random) -> Phrase:
    """Draws an owner, without an indefinite article, because "de" stands before it."""
    noun = pick.choice(nouns_of(PERSON))
    return noun_phrase(pick, noun, determiner=definite(pick, noun))


def institution(pick: random.Random) -> Pair:
    """Draws a sentence such as "The agreement on the European Economic Area was signed in August 1992.".

    French has the two adjectives in the opposite order.
    """
    name, nom, feminine = pick.choice(lexicon.INSTITUTIONS)
    outer, *outer_forms = pick.choice(lexicon.OUTER)
    inner, *inner_forms = pick.choice(lexicon.INNER)
    document, titre, is_feminine = pick.choice(lexicon.DOCUMENTS)
    done, fait = pick.choice(lexicon.PASSIVES)
    negative = pick.random() < 0.2
    month, mois, year = _date(pick)
    mark = "not" if negative else ""
    verb = tie(
        [Word("was", "tense"), Word(mark, "not"), Word(done, "verb")],
        [Word("ne" if negative else "", "not"), Word("a", "tense"), Word("pas" if negative else "", "not"), Word("été", "tense"),
         Word(fait + ("e" if is_feminine else ""), "verb")],
    )  # fmt: skip
    opening = [
        said("the", "la" if is_feminine else "le"),
        said(document, titre),
        said("on", "sur"),
        said("the", "la" if feminine else "le"),
    ]
    first, second, third = said(outer, outer_forms[feminine]), said(inner, inner_forms[feminine]), said(name, nom)
    closing = [verb, said("in", "en"), said(month, mois), said(year, year)]
    return make_pair(
        "institution",
        [*opening, first, second, third, *closing],
        french=[*opening, third, second, first, *closing],
        marks=((outer, f"{inner} {name}"),),
    )  # fmt: skip


def _date(pick: random.Random) -> tuple[str, str, str]:
    month = pick.choice(tuple(lexicon.MONTHS))
    return month, lexicon.MONTHS[month], pick.choice(lexicon.YEARS)


def birth(pick: random.Random) -> Pair:
    """Draws "Our cousins were born in May 1962.": the participle agrees with the subject."""
    subject = draw_third(pick)
    month, mois, year = _date(pick)
    finite = BE.present[4 if subject.plural else 1]
    return make_pair(
        "birth",
        [subject, said(english_be(subject, "past"), finite), said("born", "né" + subject.ending), said("in", "en"), said(month, mois),
         said(year, year)],
        subject,
    )  # fmt: skip


def motion(pick: random.Random) -> Pair:
    """Draws "My sister went to the market yesterday.": the participle with "être" agrees, and "à le" contracts."""
    verb = pick.choice(verbs.MOTION)
    subject, tense = draw_third(pick, verb.subject), pick.choice(("present", "past", "past", "future"))
    goes = verb.infinitive in ("aller", "venir", "retourner")
    person = subject.noun is None or "person" in subject.noun.kinds
    kinds = {"place"} if person else {"ground", "room"}
    noun = pick.choice(nouns_of(kinds, (lambda n: bool(n.to)) if goes else lambda n: n.at[0] == "at"))
    place = noun_phrase(
        pick, noun, determiner=pick.choice(("the", "the", "this")), adjectives=pick.choice((0, 0, 1)), plural=False
    )
    negation = draw_negation(pick, verb, tense, 0.2)
    when = WHEN[tense] if pick.random() < 0.5 and not negation else ()
    preposition = said("to", noun.to) if goes else said("at", "à")
    return make_pair(
        "motion",
        [subject, verb_group(verb, subject, tense, negation), preposition, place, *when],
        subject, place,
    )  # fmt: skip


def activity(pick: random.Random) -> Pair:
    """Draws a sentence such as "Three black cats sleep in the garden."."""
    verb = pick.choice(verbs.INTRANSITIVE)
    subject = draw_subject(pick, verb.subject)
    if pick.random() < 0.2:
        subject = both(_plain(pick), _plain(pick))
    tense = draw_tense(pick, subject, TENSES, verb)
    preposition, place = draw_place(pick, nouns_of(verb.object))
    negation = draw_negation(pick, verb, tense, 0.2)
    return make_pair(
        "activity", [subject, verb_group(verb, subject, tense, negation), preposition, place], subject, place
    )


def draw_place(pick: random.Random, nouns: Sequence[Noun]) -> tuple[Part, Phrase]:
    """Draws a place and the preposition before it."""
    noun = pick.choice(nouns)
    determiner = pick.choice(("the", "the", "this", *(("my", "their", "her") if "ours" in noun.kinds else ())))
    place = noun_phrase(pick, noun, determiner=determiner, adjectives=pick.choice((0, 0, 1)), plural=False)
    return said(*noun.at), place


def _plain(pick: random.Random) -> Phrase:
    return noun_phrase(pick, pick.choice(nouns_of(PERSON)), adjectives=pick.choice((0, 0, 1)), plural=False)


def existence(pick: random.Random) -> Pair:
    """Draws a sentence such as "There are two red cars in the street."."""
    noun = pick.choice(nouns_of({"person", "animal", "thing", "plant"}, lambda n: "family" not in n.kinds))
    plural, tense = pick.random() < 0.7, pick.choice(("present", "present", "past"))
    negative = pick.random() < 0.2
    determiner = pick.choice((*lexicon.NUMBERS, "a", "a")) if plural and not negative else "a"
    thing = noun_phrase(pick, noun, determiner=determiner, plural=plural, negated=negative)
    room = {"animal": {"ground"}, "plant": {"ground"}, "thing": {"room", "building"}}
    where = next((room[kind] for kind in room if kind in noun.kinds), {"ground", "room", "building"})
    preposition, place = draw_place(pick, nouns_of(where, lambda n: "place" in n.kinds))
    there = tie(
        [Word("there", "there"), Word(english_be(thing, tense), "is"), Word("not" if negative else "", "not")],
        [Word("il", "there"), Word("ne" if negative else "", "not"), Word("y", "there"), Word("a" if tense == "present" else "avait", "is"),
         Word("pas" if negative else "", "not")],
    )  # fmt: skip
    return make_pair(
        "existence",
        [there, thing, preposition, place],
        thing,
    )  # fmt: skip


COMPARATIVES = {
    "small": "smaller", "big": "bigger", "old": "older", "young": "younger", "happy": "happier", "rich": "richer",
    "heavy": "heavier", "proud": "prouder", "sad": "sadder", "clean": "cleaner", "good": "better",
    "pretty": "prettier", "angry": "angrier", "brave": "braver", "light": "lighter", "ripe": "riper",
}  # fmt: skip


def comparison(pick: random.Random) -> Pair:
    """Draws a sentence such as "The red car is more expensive than the bicycle."."""
    kind = frozenset({pick.choice(("person", "person", "animal", "building", "vehicle", "thing", "text", "food"))})
    noun, other = pick.sample(nouns_of(kind), 2)
    first = noun_phrase(pick, noun, determiner=definite(pick, noun), adjectives=pick.choice((0, 1)))
    second = noun_phrase(pick, other, determiner=definite(pick, other), adjectives=0)
    fit = predicate(pick, noun, first)
    while fit.kind in ("colour", "origin") or fit.english in ("bad", "open", "closed", "broken", "empty", "round"):
        fit = predicate(pick, noun, first)
    tense = pick.choice(("present", "present", "past"))
    form = fit.form(feminine=first.feminine, plural=first.plural)
    if fit.english in COMPARATIVES:
        how = [said(COMPARATIVES[fit.english], "meilleur" + first.ending if fit.english == "good" else f"plus {form}")]
    else:
        how = [said("more", "plus"), said(fit.english, form)]
    return make_pair(
        "comparison",
        [first, be(first, tense), *how, said("than", "que"), second],
        first, second, marks=((fit.english, noun.english),),
    )  # fmt: skip


def possession(pick: random.Random) -> Pair:
    """Draws a sentence such as "Her brother has a blue hat."."""
    subject = draw_subject(pick, PERSON)
    noun = pick.choice(nouns_of({"ours"}, lambda n: "single" not in n.kinds and "place" not in n.kinds))
    tense = pick.choice(("present", "present", "past", "future"))
    negation = draw_negation(pick, HAVE, tense, 0.2)
    plural = pick.random() < 0.5
    determiner = pick.choice((*lexicon.NUMBERS, "a")) if plural and not negation else "a"
    object_ = noun_phrase(pick, noun, determiner=determiner, plural=plural, negated=bool(negation))
    return make_pair(
        "possession",
        [subject, verb_group(HAVE, subject, tense, negation), object_],
        subject, object_,
    )  # fmt: skip


RELATED = {"family", "carer"}


def identity(pick: random.Random) -> Pair:
    """Draws "This is my house.", with "c'est", or "She is the teacher of my son."."""
    if pick.random() < 0.5:
        noun = pick.choice(nouns_of({"ours"}))
        thing = noun_phrase(pick, noun, determiner=pick.choice(("my", "his", "her", "our", "your", "their")))
        this = [said("these", "ce"), said("are", "sont")] if thing.plural else [said("this", "ce"), said("is", "est")]
        return make_pair("identity", [*this, thing], thing)
    subject, tense = PRONOUNS[pick.choice(("he", "she"))], pick.choice(("present", "past"))
    noun = pick.choice(nouns_of(RELATED, lambda n: n.feminine == subject.feminine))
    owner = draw_owner(pick)
    return make_pair(
        "identity",
        [subject, be(subject, tense), said("the", "la" if noun.feminine else "le"), said(noun.english, noun.french), said("of", "de"), owner],
        owner,
    )  # fmt: skip


def modal(pick: random.Random) -> Pair:
    """Draws a sentence such as "She wants to buy the house." or "He cannot open the door."."""
    verb, can = pick.choice([v for v in verbs.TRANSITIVE if not v.state]), pick.choice(verbs.MODAL)
    subject, noun = draw_subject(pick, verb.subject), pick.choice(nouns_of(verb.object))
    tense = "present" if can.infinitive == "devoir" else pick.choice(("present", "present", "past"))
    negative = pick.random() < 0.3
    object_ = object_phrase(pick, verb, noun, negated=negative)
    if can.infinitive == "vouloir":
        english = english_verb(can, subject, tense, "not" if negative else "")
    else:
        word = can.english[2 if tense == "past" else 0]
        english = (Word(word, "tense", "verb"), Word("not" if negative else "", "not"))
        if negative and word == "can":
            english = (Word("cannot", "tense", "verb", "not"),)
    finite = tie(english, french_verb(can, subject, tense, negation="pas" if negative else None))
    return make_pair(
        "modal",
        [subject, finite, said(verb.english[0], verb.infinitive), object_],
        subject, object_, marks=use(verb, noun),
    )  # fmt: skip


def dative(pick: random.Random) -> Pair:
    """Draws "The teacher gives the letter to her brother." or "The teacher gives him the letter."."""
    verb, subject = pick.choice(verbs.DATIVE), draw_subject(pick, PERSON)
    noun, tense = pick.choice(nouns_of(verb.object)), pick.choice(("present", "past", "past", "future"))
    negation = draw_negation(pick, verb, tense, 0.2)
    object_ = noun_phrase(pick, noun, adjectives=pick.choice((0, 0, 1)), negated=bool(negation))
    if pick.random() < 0.5:
        other = noun_phrase(pick, pick.choice(nouns_of(PERSON)), adjectives=pick.choice((0, 0, 1)))
        return make_pair("dative", [subject, verb_group(verb, subject, tense, negation), object_, said("to", "à"), other],
                         subject, object_, other, marks=use(verb, noun))  # fmt: skip
    english, _, lui = OBJECTS[draw_other(pick, subject)]
    group = verb_group(verb, subject, tense, negation, pronoun=(english, lui))
    return make_pair("dative", [subject, group, object_], subject, object_, marks=use(verb, noun))


def draw_other(pick: random.Random, subject: Phrase) -> str:
    """Draws an object pronoun that does not refer to the subject."""
    same = {1: ("I", "we"), 2: ("you",)}.get(subject.person, ())
    return pick.choice([name for name in OBJECTS if name not in same])


def nothing(pick: random.Random) -> Pair:
    """Draws a sentence such as "He saw nothing.", "He saw nobody." or "Nobody saw the cat."."""
    tense = pick.choice(("present", "past", "past", "future"))
    if pick.random() < 0.5:
        verb = pick.choice(verbs.TRANSITIVE)
        noun = pick.choice(nouns_of(verb.object))
        someone = Phrase((), (), frozenset(), feminine=False, plural=False)
        object_ = object_phrase(pick, verb, noun, determiner=definite(pick, noun))
        group = tie([Word("nobody", "not"), *english_verb(verb, someone, tense)],
                    [Word("personne", "not"), *french_verb(verb, someone, tense, negation=BARE)])  # fmt: skip
        return make_pair("nothing", [group, object_], object_, marks=use(verb, noun))
    wanted = pick.choice(("thing", "person"))
    verb = pick.choice([v for v in verbs.TRANSITIVE if ("person" in v.object) == (wanted == "person") and not v.state
                        and (wanted == "person" or v.object & {"keep", "buy", "food", "text", "carry"})])  # fmt: skip
    subject = draw_subject(pick, verb.subject)
    tense = draw_tense(pick, subject, (tense,), verb)
    english = english_verb(verb, subject, tense)
    if wanted == "thing":
        group = tie([*english, Word("nothing", "not")], french_verb(verb, subject, tense, negation="rien"))
    else:
        french = french_verb(verb, subject, tense, negation=BARE)
        group = tie([*english, Word("nobody", "not")], [*french, Word("personne", "not")])
    return make_pair("nothing", [subject, group], subject)
