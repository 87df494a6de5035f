"""Noun phrases, verbs and whole sentences: agreement, word order, elision, contraction, and links between the words."""

import dataclasses

import pytest

from jaxformer.demo import lexicon
from jaxformer.demo.phrases import Clause, Phrase, noun_phrase, said, sentence, tie, words
from jaxformer.demo.sentences import SUBJECTS


def phrase(english, negated=False):
    """A noun phrase from its English words."""
    determiner, *adjectives, noun = english.split()
    found = next(n for n in lexicon.NOUNS if noun in (n.english, n.english_plural))
    suiting = [a for a in lexicon.ADJECTIVES if a.suits & found.kinds]
    chosen = [next(a for a in suiting if a.english == word) for word in adjectives]
    determiner = {"these": "this", "an": "a", "some": "a", "any": "a"}.get(determiner, determiner)
    built = noun_phrase(found, chosen[::-1], determiner, noun != found.english, negated)
    assert " ".join(built.english) == english
    return built


def spelled(*french, end="."):
    """French words as a sentence, without its mark."""
    whole = said("x", " ".join(french).replace(" ", "_"))
    return sentence("test", tie([whole, said(end, end)])).french.removesuffix(".")


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("the old man", "le vieil homme"),
        ("the old men", "les vieux hommes"),
        ("the old woman", "la vieille femme"),
        ("the old hero", "le vieux héros"),
        ("an owl", "un hibou"),
        ("this owl", "ce hibou"),
        ("the old island", "la vieille île"),
        ("this child", "cet enfant"),
        ("a beautiful bird", "un bel oiseau"),
        ("the new computer", "le nouvel ordinateur"),
        ("the beautiful castles", "les beaux châteaux"),
        ("this school", "cette école"),
        ("my friend", "mon ami"),
        ("her orange", "son orange"),
        ("his sister", "sa sœur"),
        ("my umbrella", "mon parapluie"),
        ("his big orange", "sa grosse orange"),
        ("their watches", "leurs montres"),
        ("the white Italian dresses", "les robes italiennes blanches"),
        ("the old black cars", "les vieilles voitures noires"),
        ("a small white house", "une petite maison blanche"),
        ("the brown shoes", "les chaussures marron"),
        ("the tired English doctors", "les médecins anglais fatigués"),
        ("a big dog", "un gros chien"),
        ("a big house", "une grande maison"),
        ("some white horses", "des chevaux blancs"),
        ("some old houses", "de vieilles maisons"),
        ("some flowers", "des fleurs"),
        ("six expensive hats", "six chapeaux chers"),
        ("the gray mice", "les souris grises"),
        ("an intelligent goat", "une chèvre intelligente"),
        ("the light boxes", "les boîtes légères"),
        ("the proud princesses", "les princesses fières"),
        ("her brave grandmothers", "ses grands-mères courageuses"),
        ("the European Economic Area", "la zone économique européenne"),
    ],
)
def test_noun_phrases(english, expected):
    assert spelled(*phrase(english).french) == expected[0].upper() + expected[1:]


@pytest.mark.parametrize(
    ("english", "expected"),
    [("an egg", "D'œuf"), ("any dogs", "De chiens"), ("any owls", "De hiboux"), ("the egg", "L'œuf")],
)  # fmt: skip
def test_negation_turns_an_indefinite_article_into_de(english, expected):
    assert spelled(*phrase(english, negated=True).french) == expected


@pytest.mark.parametrize(
    ("noun", "determiner", "negated", "expected"),
    [
        ("milk", "part", False, "du lait"),
        ("water", "part", False, "de l'eau"),
        ("water", "part", True, "d'eau"),
        ("chess", "all", False, "les échecs"),
        ("tennis", "all", True, "le tennis"),
    ],
)
def test_articles_that_english_lacks(noun, determiner, negated, expected):
    found = next(n for n in lexicon.NOUNS if n.english == noun)
    built = noun_phrase(found, [], determiner, False, negated)
    assert built.english == (noun,)
    assert spelled(*built.french) == expected[0].upper() + expected[1:]


@pytest.mark.parametrize(
    ("french", "expected"),
    [
        ("la école de le ami", "L'école de l'ami"),
        ("le livre de le roi", "Le livre du roi"),
        ("le livre de les héros", "Le livre des héros"),
        ("je aime le héros", "J'aime le héros"),
        ("il va à le marché", "Il va au marché"),
        ("il va à la hôpital", "Il va à l'hôpital"),
        ("il parle à les enfants", "Il parle aux enfants"),
        ("la maison que elle ne aime pas", "La maison qu'elle n'aime pas"),
        ("il me a vue", "Il m'a vue"),
        ("le haricot et le hibou", "Le haricot et le hibou"),
    ],
)
def test_elision_and_contraction(french, expected):
    assert spelled(french) == expected
    assert spelled(french, end="?") == expected + " ?"


def plain(text):
    return " ".join(word.replace("_", " ").partition("/")[0] for word in text.split() if word[0] != "/")


def clause(infinitive, subject, tense, negation="", **options):
    singles = (lexicon.KNOW_PERSON, lexicon.KNOW_FACT, lexicon.HAVE, lexicon.BE)
    verb = next(verb for verb in (*lexicon.VERBS, *singles) if verb.infinitive == infinitive)
    return Clause(verb, SUBJECTS[subject], tense, negation, **options)


@pytest.mark.parametrize(
    ("infinitive", "subject", "tense", "closing", "pronoun", "expected"),
    [
        ("manger", "we", "present", None, "", "mangeons"),
        ("manger", "we", "progressive", None, "", "mangions"),
        ("manger", "he", "progressive", "pas", "", "ne mangeait pas"),
        ("manger", "they", "progressive", None, "", "mangeaient"),
        ("acheter", "she", "future", None, "", "achètera"),
        ("appeler", "I", "future", None, "", "appellerai"),
        ("voir", "you", "future", None, "", "verrez"),
        ("voir", "he", "past", None, "la e", "la a vue"),
        ("voir", "he", "past", "rien", "", "ne a rien vu"),
        ("voir", "he", "past", "", "", "ne a vu"),
        ("aller", "they", "past", None, "", "sont allés"),
        ("retourner", "she", "past", "pas", "", "ne est pas retournée"),
        ("ouvrir", "you", "past", None, "les es", "les avez ouvertes"),
        ("aimer", "they", "past", "plus", "", "ne aimaient plus"),
        ("savoir", "you", "present", None, "", "savez"),
        ("connaître", "she", "past", None, "", "connaissait"),
        ("boire", "they", "present", None, "", "boivent"),
        ("lire", "they", "present", "jamais", "le", "ne le lisent jamais"),
        ("jouer", "I", "past", "jamais", "", "ne ai jamais joué de"),
        ("être", "you", "past", None, "", "étiez"),
    ],
)
def test_french_verbs(infinitive, subject, tense, closing, pronoun, expected):
    french, ending = [*pronoun.split(), "", ""][:2]
    assert plain(clause(infinitive, subject, tense, pronoun=("", french, ending)).french(closing)) == expected


@pytest.mark.parametrize(
    ("infinitive", "subject", "tense", "expected"),
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
def test_inversion(infinitive, subject, tense, expected):
    assert plain(clause(infinitive, subject, tense).french(inverted=True)) == expected


@pytest.mark.parametrize(
    ("infinitive", "subject", "tense", "negation", "expected"),
    [
        ("acheter", "she", "present", "", "buys"),
        ("acheter", "you", "present", "", "buy"),
        ("acheter", "they", "past", "not", "did not buy"),
        ("acheter", "she", "present", "not", "does not buy"),
        ("acheter", "she", "present", "never", "never buys"),
        ("acheter", "I", "future", "never", "will never buy"),
        ("chercher", "he", "progressive", "not", "was not looking for"),
        ("aimer", "we", "present", "no_longer", "no longer love"),
        ("être", "I", "present", "not", "am not"),
        ("être", "they", "past", "", "were"),
    ],
)
def test_english_verbs(infinitive, subject, tense, negation, expected):
    assert plain(clause(infinitive, subject, tense, negation).english()) == expected


def test_a_pronoun_follows_the_english_verb_and_stands_before_the_french_one():
    group = clause("voir", "we", "past", "not", pronoun=("her", "la", "e")).group()
    assert group.english == ("did", "not", "see", "her")
    assert group.french == ("ne", "la", "avons", "pas", "vue")
    assert group.links == {(0, 2), (1, 0), (1, 3), (2, 4), (3, 1)}


def test_words_of_a_sentence():
    assert words("L'école est-elle fermée ?") == ("L'", "école", "est-elle", "fermée", "?")


def test_phrases_keep_their_links_in_any_order():
    white, house = said("white", "blanche"), said("house", "maison")
    assert tie([white, house, "not/n eat/v"], [house, white, "ne/n mange/v pas/n"]).links == {
        *((0, 1), (1, 0)),
        *((2, 2), (2, 4), (3, 3)),
    }


def test_features_are_collected():
    old = phrase("the old man")
    assert tie([old, said("who", "qui", ("a", "b"))]).features == {("old", "man"), ("a", "b")}


def test_phrases_are_used_once_in_each_language():
    the, dog = said("the", "le"), said("dog", "chien")
    with pytest.raises(AssertionError, match="both languages"):
        tie([the, dog], [the])
    with pytest.raises(AssertionError, match="once"):
        tie([the, dog, the], [the, dog])


@pytest.mark.parametrize(("language", "lonely"), [("English", "english"), ("French", "french")])
def test_a_word_without_a_link_is_refused(language, lonely):
    dog = said("dog", "chien")
    alone = dataclasses.replace(dog, **{lonely: (*getattr(dog, lonely), "oh")})
    assert isinstance(alone, Phrase)
    with pytest.raises(AssertionError, match=f"{language} word"):
        sentence("test", alone)
