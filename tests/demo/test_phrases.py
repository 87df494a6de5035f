"""Noun phrases: agreement, word order of adjectives, elision and contraction."""

import pytest

from jaxformer.demo import lexicon, phrases


def phrase(english, negated=False):
    """A noun phrase from its English words."""
    determiner, *adjectives, noun = english.split()
    found = next(n for n in lexicon.NOUNS if noun in (n.english, n.english_plural))
    chosen = [next(a for a in phrases.adjectives_for(found) if a.english == word) for word in adjectives]
    determiner = {"these": "this", "an": "a", "some": "a", "any": "a"}.get(determiner, determiner)
    built = phrases.build(found, chosen, determiner=determiner, plural=noun != found.english, negated=negated)
    assert " ".join(built.english) == english
    return built


def sentence(words, end="."):
    """Words as a sentence, after elision (``l'ami``) and contraction (``du``)."""
    return phrases.french_text([word for word, _ in phrases.join_french(words)], end)


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("the old man", "le vieil homme"),
        ("the old men", "les vieux hommes"),
        ("the old woman", "la vieille femme"),
        ("the old heroes", "les vieux héros"),
        ("the old hero", "le vieux héros"),
        ("an owl", "un hibou"),
        ("this owl", "ce hibou"),
        ("the new lawyer", "le nouvel avocat"),
        ("the new nurses", "les nouvelles infirmières"),
        ("this child", "cet enfant"),
        ("a beautiful bird", "un bel oiseau"),
        ("the beautiful castles", "les beaux châteaux"),
        ("this church", "cette église"),
        ("my friend", "mon ami"),
        ("her orange", "son orange"),
        ("his sister", "sa sœur"),
        ("my scarf", "mon écharpe"),
        ("her red scarf", "son écharpe rouge"),
        ("my beautiful scarf", "ma belle écharpe"),
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
        ("the sad queens", "les reines tristes"),
        ("the grey mice", "les souris grises"),
        ("an interesting story", "une histoire intéressante"),
        ("the light boxes", "les boîtes légères"),
        ("the ripe pear", "la poire mûre"),
        ("the proud princesses", "les princesses fières"),
        ("her brave grandmothers", "ses grands-mères courageuses"),
    ],
)
def test_noun_phrases(english, expected):
    assert sentence(phrase(english).french) == expected[0].upper() + expected[1:] + "."


def test_negation_turns_an_article_into_de():
    for english, expected in (
        ("an egg", "D'œuf."),
        ("any dogs", "De chiens."),
        ("any owls", "De hiboux."),
        ("any oranges", "D'oranges."),
    ):
        assert sentence(phrase(english, negated=True).french) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("la", "école", "de", "le", "ami"), "L'école de l'ami."),
        (("le", "livre", "de", "le", "roi"), "Le livre du roi."),
        (("le", "livre", "de", "les", "héros"), "Le livre des héros."),
        (("je", "aime", "le", "héros"), "J'aime le héros."),
        (("il", "va", "à", "le", "marché"), "Il va au marché."),
        (("il", "va", "à", "la", "hôpital"), "Il va à l'hôpital."),
        (("il", "parle", "à", "les", "enfants"), "Il parle aux enfants."),
        (("la", "maison", "que", "elle", "ne", "aime", "pas"), "La maison qu'elle n'aime pas."),
        (("il", "la", "a", "vue"), "Il l'a vue."),
        (("ce", "est", "le", "hibou", "de", "un", "ami"), "C'est le hibou d'un ami."),
        (("le", "haricot", "et", "le", "hibou"), "Le haricot et le hibou."),
        (("il", "ne", "y", "a", "pas", "de", "haricots"), "Il n'y a pas de haricots."),
    ],
)
def test_elision_and_contraction(words, expected):
    assert sentence(words) == expected
    assert sentence(words, "?") == expected[:-1] + " ?"
