"""Verbs in the tenses, persons and negations that the built-in corpus uses."""

import pytest

from jaxformer.demo import conjugation, verbs
from jaxformer.demo.phrases import PRONOUNS


def verb(infinitive):
    tables = (*verbs.TRANSITIVE, *verbs.DATIVE, *verbs.INTRANSITIVE, *verbs.MOTION, *verbs.MODAL)
    singles = (verbs.BE, verbs.HAVE, verbs.DRINK, verbs.PLAY, verbs.KNOW_FACT, verbs.KNOW_PERSON)
    return next(v for v in (*tables, *singles) if v.infinitive == infinitive)


@pytest.mark.parametrize(
    ("infinitive", "subject", "tense", "options", "expected"),
    [
        ("manger", "we", "present", {}, "mangeons"),
        ("manger", "we", "progressive", {}, "mangions"),
        ("manger", "he", "progressive", {"negation": "pas"}, "ne mangeait pas"),
        ("manger", "they", "progressive", {}, "mangeaient"),
        ("acheter", "they", "present", {}, "achètent"),
        ("acheter", "she", "future", {}, "achètera"),
        ("appeler", "we", "present", {}, "appelons"),
        ("appeler", "I", "future", {}, "appellerai"),
        ("voir", "I", "future", {}, "verrai"),
        ("envoyer", "they", "future", {}, "enverront"),
        ("voir", "he", "past", {"clitic": ("la",), "ending": "e"}, "la a vue"),
        ("voir", "he", "past", {"negation": "rien"}, "ne a rien vu"),
        ("voir", "he", "past", {"negation": ""}, "ne a vu"),
        ("aller", "they", "past", {}, "sont allés"),
        ("venir", "she", "past", {"negation": "pas"}, "ne est pas venue"),
        ("rester", "she", "future", {"negation": "plus"}, "ne restera plus"),
        ("nettoyer", "you", "present", {}, "nettoyez"),
        ("nettoyer", "you", "future", {}, "nettoierez"),
        ("ouvrir", "you", "past", {"clitic": ("les",), "ending": "es"}, "les avez ouvertes"),
        ("aimer", "they", "past", {"negation": "plus"}, "ne aimaient plus"),
        ("pouvoir", "we", "past", {}, "pouvions"),
        ("devoir", "they", "present", {}, "doivent"),
        ("connaître", "she", "past", {}, "connaissait"),
        ("savoir", "you", "present", {}, "savez"),
        ("boire", "they", "present", {}, "boivent"),
        ("courir", "he", "future", {}, "courra"),
        ("lire", "they", "present", {"negation": "jamais", "clitic": ("le",)}, "ne le lisent jamais"),
    ],
)
def test_french_verbs(infinitive, subject, tense, options, expected):
    assert " ".join(conjugation.french_verb(verb(infinitive), PRONOUNS[subject], tense, **options)) == expected


@pytest.mark.parametrize(
    ("infinitive", "pronoun", "tense", "expected"),
    [
        ("lire", "she", "present", "lit-elle"),
        ("manger", "he", "present", "mange-t-il"),
        ("avoir", "she", "present", "a-t-elle"),
        ("manger", "they", "present", "mangent-ils"),
        ("manger", "she", "past", "a-t-elle mangé"),
        ("aller", "he", "future", "ira-t-il"),
        ("être", "he", "past", "était-il"),
        ("vendre", "he", "present", "vend-il"),
        ("voir", "we", "past", "avons-nous vu"),
    ],
)
def test_inversion(infinitive, pronoun, tense, expected):
    assert " ".join(conjugation.inverted(verb(infinitive), PRONOUNS[pronoun], tense)) == expected


@pytest.mark.parametrize(
    ("infinitive", "subject", "tense", "negation", "expected"),
    [
        ("acheter", "she", "present", "", "buys"),
        ("acheter", "they", "past", "not", "did not buy"),
        ("acheter", "she", "present", "never", "never buys"),
        ("acheter", "I", "future", "never", "will never buy"),
        ("chercher", "he", "progressive", "not", "was not looking for"),
        ("aimer", "we", "present", "no longer", "no longer love"),
        ("vouloir", "he", "present", "not", "does not want to"),
        ("lire", "you", "progressive", "", "were reading"),
    ],
)
def test_english_verbs(infinitive, subject, tense, negation, expected):
    assert " ".join(conjugation.english_verb(verb(infinitive), PRONOUNS[subject], tense, negation)) == expected
