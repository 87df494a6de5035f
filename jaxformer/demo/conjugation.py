"""Verb groups in both languages: tense, negation, object pronouns, inversion.

Their words have roles, by which they are aligned: the bearers of "tense", the "verb", "not", and an "object".
"""

from __future__ import annotations

import random

from jaxformer.demo.alignment import Part, Word, tie
from jaxformer.demo.phrases import Phrase
from jaxformer.demo.verbs import BE, HAVE, Verb

NEGATIONS = {"not": "pas", "never": "jamais", "no longer": "plus"}
"""English word and what closes the French negation that "ne" opens."""

BARE = ""
"""A French negation that another word closes: "personne" before the verb or after it."""


def draw_tense(pick: random.Random, subject: Phrase, tenses: tuple[str, ...], *verbs: Verb) -> str:
    """Draws a tense that the verbs have: the past if the present looks the same ("they read"), so that each sentence
    has one meaning."""
    tense = pick.choice(tenses)
    if tense == "progressive" and not all(verb.lasting for verb in verbs):
        tense = "past"
    moment = not all(verb.lasting or verb.state or verb.etre for verb in verbs)
    if tense == "present" and moment and pick.random() < 0.5:
        tense = "past"  # "he breaks the plate" is rare
    same = any(verb.english[0] == verb.english[2] for verb in verbs)
    return "past" if tense == "present" and same and not singular(subject) else tense


def draw_negation(pick: random.Random, verb: Verb, tense: str, chance: float) -> str:
    """Draws an English negation that the verb takes in this tense, often the empty string."""
    if pick.random() >= chance:
        return ""
    if tense == "progressive":
        return "not"
    if tense == "present" or (tense == "past" and verb.state):  # an imperfect does not go well with "never"
        return pick.choice(("not", "not", "no longer" if tense == "past" else "never", "no longer"))
    return pick.choice(("not", "not", "never"))


def singular(subject: Phrase) -> bool:
    """Returns True if the English present takes an s."""
    return subject.person == 3 and not subject.plural


def english_be(subject: Phrase, tense: str) -> str:
    """Returns the English form of "be": am, is, are, was, were; "will be"."""
    if tense == "future":
        return "will be"
    if subject.person == 1 and not subject.plural:
        return "am" if tense == "present" else "was"
    number = 1 if subject.plural else 0
    return (("is", "are") if tense == "present" else ("was", "were"))[number]


def verb_group(
    verb: Verb,
    subject: Phrase,
    tense: str,
    negation: str = "",
    *,
    pronoun: tuple[str, str] | None = None,
    ending: str = "",
    preposition: str = "",
) -> Part:
    """Returns the verb group of both languages.

    Args:
      negation: the English negation, a key of `NEGATIONS`, or the empty string.
      pronoun: an English object, which follows the verb, and the French one, which stands before it.
      ending: of a participle that agrees with an object before it.
      preposition: what the French verb puts before its object: "à", "de".
    """
    english, french = pronoun or ("", "")
    clitic = (french,) if french else ()
    return tie(
        [*english_verb(verb, subject, tense, negation), Word(english, "object")],
        [
            *french_verb(verb, subject, tense, negation=NEGATIONS.get(negation), clitic=clitic, ending=ending),
            Word(preposition, "verb"),
        ],
    )


def be(subject: Phrase, tense: str, negation: str = "") -> Part:
    """Returns a form of "be" in both languages; `negation` is "not" or the empty string."""
    return tie(
        [Word(english_be(subject, tense), "tense", "verb"), Word(negation, "not")],
        french_verb(BE, subject, tense, negation=NEGATIONS.get(negation)),
    )


def english_verb(verb: Verb, subject: Phrase, tense: str, negation: str = "") -> tuple[Word, ...]:
    """Returns the English verb group: present, past, progressive past, future."""
    base, third, past, _, ing = verb.english
    mark = (Word(negation, "not"),) if negation else ()
    if tense == "future":
        return (Word("will", "tense"), *mark, Word(base, "verb"))
    if tense == "progressive":
        return (Word(english_be(subject, "past"), "tense"), *mark, Word(ing, "verb"))
    if negation == "not":
        return (english_do(subject, tense), *mark, Word(base, "verb"))
    form = past if tense == "past" else third if singular(subject) else base
    return (*mark, Word(form, "tense", "verb"))


def english_do(subject: Phrase, tense: str) -> Word:
    """Returns the auxiliary of questions and negations: do, does, did."""
    return Word("did" if tense == "past" else "does" if singular(subject) else "do", "tense")


def french_verb(
    verb: Verb,
    subject: Phrase,
    tense: str,
    *,
    negation: str | None = None,
    clitic: tuple[str, ...] = (),
    ending: str = "",
) -> tuple[Word, ...]:
    """Returns the French verb group with its object pronoun and negation around it.

    Args:
      negation: None, or what closes it after the finite verb: "pas", "jamais", "plus", "rien", `BARE`.
      clitic: an object pronoun, which stands before the verb.
      ending: of a participle that agrees with an object before it.
    """
    finite, rest = _finite(verb, subject, tense, ending)
    opened = () if negation is None else (Word("ne", "not"),)
    closed = (Word(negation, "not"),) if negation else ()
    return (*opened, *(Word(word, "object") for word in clitic), finite, *closed, *rest)


def inverted(verb: Verb, pronoun: Phrase, tense: str, *, ending: str = "") -> tuple[Word, ...]:
    """Returns the verb before its pronoun, which has the role "subject": lit-elle, mange-t-il, a-t-elle mangé."""
    finite, rest = _finite(verb, pronoun, tense, ending)
    subject = pronoun.french[0]
    bridge = "-t-" if finite[-1] in "ae" and subject in ("il", "elle") else "-"
    return (Word(finite + bridge + subject, *sorted(finite.roles), "subject"), *rest)


def _finite(verb: Verb, subject: Phrase, tense: str, ending: str) -> tuple[Word, tuple[Word, ...]]:
    index = _person(subject)
    if tense == "past" and not verb.state:
        auxiliary = BE if verb.etre else HAVE
        participle = agreeing(verb.participle, subject.ending if verb.etre else ending)
        return Word(auxiliary.present[index], "tense"), (Word(participle, "verb"),)
    if tense == "present":
        return Word(verb.present[index], "tense", "verb"), ()
    if tense == "future":
        return Word(verb.future + ("ai", "a", "ons", "ez", "ont")[index], "tense", "verb"), ()
    stem = verb.imperfect
    if index in (2, 3) and stem.endswith("ge"):
        stem = stem[:-1]
    return Word(stem + ("ais", "ait", "ions", "iez", "aient")[index], "tense", "verb"), ()


def _person(subject: Phrase) -> int:
    if subject.person == 3:
        return 4 if subject.plural else 1
    return (2 if subject.plural else 0) if subject.person == 1 else 3


def agreeing(participle: str, ending: str) -> str:
    """Returns a participle with the ending of what it agrees with: pris, prise, dû, vue."""
    return participle if ending == "s" and participle.endswith("s") else participle + ending
