"""The tables are read as they should be: forms of nouns, adjectives and verbs, and one sense for each English word."""

import pytest

from jaxformer.demo import lexicon


def test_words_make_one_sense():
    """No noun takes two adjectives of one English word, and but for "spring", no English form is two nouns."""
    for noun in lexicon.NOUNS:
        words = [adjective.english for adjective in lexicon.ADJECTIVES if adjective.suits & noun.kinds]
        assert len(words) == len(set(words)), noun
    nouns = [noun for noun in lexicon.NOUNS if noun.english != "spring"]
    assert len({form for noun in nouns for form in (noun.english, noun.english_plural)}) == 2 * len(nouns)


def test_every_verb_has_objects_or_places():
    kinds = {kind for noun in lexicon.NOUNS for kind in noun.kinds}
    assert all(set(verb.object.split()) <= kinds and verb.object for verb in lexicon.VERBS)


@pytest.mark.parametrize(
    ("english", "forms"),
    [
        ("dog", "dogs chien chiens"),
        ("story", "stories histoire histoires"),
        ("boy", "boys garçon garçons"),
        ("box", "boxes boîte boîtes"),
        ("watch", "watches montre montres"),
        ("bus", "buses autobus autobus"),
        ("boat", "boats bateau bateaux"),
        ("horse", "horses cheval chevaux"),
        ("man", "men homme hommes"),
        ("grandmother", "grandmothers grand-mère grands-mères"),
    ],
)
def test_plurals(english, forms):
    noun = next(noun for noun in lexicon.NOUNS if noun.english == english)
    assert f"{noun.english_plural} {noun.french} {noun.french_plural}" == forms


@pytest.mark.parametrize(
    ("english", "forms"),
    [  # masculine, feminine, their plurals
        ("white", "blanc blanche blancs blanches"),
        ("red", "rouge rouge rouges rouges"),
        ("gray", "gris grise gris grises"),
        ("happy", "heureux heureuse heureux heureuses"),
        ("brown", "marron marron marron marron"),
        ("beautiful", "beau belle beaux belles"),
        ("tired", "fatigué fatiguée fatigués fatiguées"),
    ],
)
def test_adjectives_agree(english, forms):
    adjective = next(adjective for adjective in lexicon.ADJECTIVES if adjective.english == english)
    found = [adjective.form(feminine=feminine, plural=plural) for plural in (False, True) for feminine in (False, True)]
    assert " ".join(found) == forms


@pytest.mark.parametrize(
    ("infinitive", "forms"),
    [  # English; present, participle, stems of the future and the imperfect
        ("oublier", "forget forgets forgot ; oublie oublie oublions oubliez oublient oublié oublier oubli"),
        ("manger", "eat eats ate eating; mange mange mangeons mangez mangent mangé manger mange"),
        ("vendre", "sell sells sold selling; vends vend vendons vendez vendent vendu vendr vend"),
        ("lire", "read reads read reading; lis lit lisons lisez lisent lu lir lis"),
        ("acheter", "buy buys bought ; achète achète achetons achetez achètent acheté achèter achet"),
        ("porter", "carry carries carried carrying; porte porte portons portez portent porté porter port"),
        ("aller", "go goes went ; vais va allons allez vont allé ir all"),
    ],
)  # fmt: skip
def test_verbs(infinitive, forms):
    verb = next(verb for verb in lexicon.VERBS if verb.infinitive == infinitive)
    assert (
        f"{' '.join(verb.english)}; {' '.join(verb.present)} {verb.participle} {verb.future} {verb.imperfect}" == forms
    )
