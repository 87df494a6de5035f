"""The built-in corpus: correct, one translation a sentence, no test sentence in training."""

import random

import pytest
import sacrebleu

from jaxformer.data import grammar
from jaxformer.data.grammar import lexicon, phrases


@pytest.fixture(scope="module")
def parts():
    return grammar.splits()


def test_size_and_determinism(parts):
    assert len(parts.train) >= 20_000
    assert len({pair.english for pair in parts.train}) == len(parts.train)
    assert grammar.generate(300) == grammar.generate(600)[:300]


def test_no_test_sentence_in_training(parts):
    english, french = ({getattr(p, side) for p in parts.train} for side in ("english", "french"))
    for part in (parts.seen, parts.unseen):
        assert not english & {p.english for p in part}
        assert not french & {p.french for p in part}
    assert not english & {p.english for p in parts.validation}
    assert not english & {p.english for p in grammar.EXAMPLES}


def test_combinations_are_unseen(parts):
    seen = {feature for pair in parts.train for feature in pair.features}
    held = [pair for pair in parts.unseen if not pair.features - seen]
    assert not held
    assert not any(pair.features - seen for pair in parts.seen if pair.construction == "relative clause")
    assert len({pair.construction for pair in parts.unseen}) > 8


def test_one_translation_a_sentence():
    """Drawn again with another seed, a sentence has the translation it had."""
    first = {pair.english: pair.french for pair in grammar.generate(20_000, seed=1)}
    shared = [(pair, first[pair.english]) for pair in grammar.generate(20_000, seed=2) if pair.english in first]
    assert len(shared) > 100
    assert all(pair.french == french for pair, french in shared)


def test_dictionary_is_no_translator(parts):
    for part in (parts.seen, parts.unseen):
        found = [grammar.dictionary_baseline(pair.english) for pair in part]
        assert 5 < sacrebleu.corpus_bleu(found, [[pair.french for pair in part]]).score < 30
    assert grammar.dictionary_baseline("The old man sees the white houses.") == "Le vieux homme voit le blanc maisons."


def noun(english):
    return next(n for n in lexicon.NOUNS if n.english == english)


def adjective(english):
    return next(a for a in lexicon.ADJECTIVES if a.english == english)


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
        (("le", "haricot", "et", "le", "hibou"), "Le haricot et le hibou."),
    ],
)
def test_elision_and_contraction(words, expected):
    assert phrases.french_text(words) == expected


@pytest.mark.parametrize(
    ("english", "feminine", "plural", "expected"),
    [
        ("old", False, False, "vieux"), ("old", True, False, "vieille"), ("old", True, True, "vieilles"),
        ("beautiful", False, True, "beaux"), ("white", True, True, "blanches"), ("happy", False, True, "heureux"),
        ("light", True, False, "légère"), ("Italian", True, False, "italienne"), ("French", False, True, "français"),
        ("red", True, False, "rouge"), ("kind", True, True, "gentilles"), ("proud", True, False, "fière"),
    ],
)  # fmt: skip
def test_adjective_forms(english, feminine, plural, expected):
    assert adjective(english).form(feminine=feminine, plural=plural) == expected


@pytest.mark.parametrize(
    ("english", "plural"),
    [
        ("horse", "chevaux"),
        ("newspaper", "journaux"),
        ("bird", "oiseaux"),
        ("mouse", "souris"),
        ("owl", "hiboux"),
        ("key", "clés"),
    ],
)
def test_noun_plurals(english, plural):
    assert noun(english).french_plural == plural


@pytest.mark.parametrize(
    ("infinitive", "subject", "tense", "options", "expected"),
    [
        ("manger", "we", "present", {}, "mangeons"),
        ("manger", "we", "progressive", {}, "mangions"),
        ("manger", "he", "progressive", {"negation": "pas"}, "ne mangeait pas"),
        ("acheter", "they", "present", {}, "achètent"),
        ("acheter", "she", "future", {}, "achètera"),
        ("voir", "I", "future", {}, "verrai"),
        ("voir", "he", "past", {"clitic": ("la",), "agree": "e"}, "la a vue"),
        ("aller", "they", "past", {"etre": True}, "sont allés"),
        ("venir", "she", "past", {"etre": True, "negation": "pas"}, "ne est pas venue"),
        ("nettoyer", "you", "present", {}, "nettoyez"),
    ],
)
def test_verb_forms(infinitive, subject, tense, options, expected):
    verbs = [v for v in (*lexicon.TRANSITIVE, *lexicon.MOTION) if v.infinitive == infinitive]
    assert " ".join(phrases.french_verb(verbs[0], phrases.PRONOUNS[subject], tense, **options)) == expected


def test_adjectives_stand_in_mirror_order():
    pick = random.Random(0)
    while True:
        phrase = phrases.noun_phrase(pick, noun("car"), determiner="the", adjectives=2, plural=False)
        if [a for a, _ in phrase.pairs] == ["white", "Italian"]:
            break
    assert phrase.french == ("la", "voiture", "italienne", "blanche")
