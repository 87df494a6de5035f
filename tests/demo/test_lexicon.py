"""Nouns and adjectives: each English word has one sense, and French words elide as they should."""

import pytest

from jaxformer.demo import lexicon, phrases


def test_words_make_one_sense():
    """No noun takes two adjectives of one English word, and no English form is two nouns."""
    for noun in lexicon.NOUNS:
        words = [adjective.english for adjective in phrases.adjectives_for(noun)]
        assert len(words) == len(set(words)), noun
    assert len({noun.english for noun in lexicon.NOUNS}) == len(lexicon.NOUNS)
    assert len({noun.english_plural for noun in lexicon.NOUNS}) == len(lexicon.NOUNS)
    assert not {noun.english for noun in lexicon.NOUNS} & {noun.english_plural for noun in lexicon.NOUNS}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("ami", True),
        ("\u00c9cole", True),
        ("homme", True),
        ("h\u00e9ros", False),
        ("haricots", False),
        ("yeux", True),
        ("roi", False),
    ],
)
def test_words_before_a_vowel(word, expected):
    assert lexicon.begins_with_vowel(word) == expected


def test_adjectives_agree():
    white = next(adjective for adjective in lexicon.ADJECTIVES if adjective.english == "white")
    old = next(adjective for adjective in lexicon.ADJECTIVES if adjective.english == "old" and adjective.liaison)
    forms = [white.form(feminine=feminine, plural=plural) for feminine in (False, True) for plural in (False, True)]
    assert forms == ["blanc", "blancs", "blanche", "blanches"]
    assert (old.form(feminine=False, plural=False), old.liaison) == ("vieux", "vieil")
