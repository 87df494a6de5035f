"""The dictionary has every word, and does not translate."""

import re

import sacrebleu

from jaxformer import demo
from jaxformer.demo import dictionary


def test_the_dictionary_is_a_weak_baseline(parts):
    for part in (parts.seen, parts.unseen):
        found = [demo.dictionary_baseline(pair.english) for pair in part]
        assert 10 < sacrebleu.corpus_bleu(found, [[pair.french for pair in part]]).score < 30
    assert demo.dictionary_baseline("The old man sees the white houses.") == "Le vieux homme voit le blanc maisons."


def test_the_dictionary_has_every_word(parts):
    words = {word for pair in parts.train for word in re.findall(r"[a-z]+", pair.english.lower())}
    assert not words - set(dictionary.WORDS)
