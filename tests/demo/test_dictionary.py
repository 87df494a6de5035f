"""The dictionary knows every word, and is no translator."""

import re

import sacrebleu

from jaxformer import demo
from jaxformer.demo import dictionary


def test_dictionary_is_no_translator(parts):
    for part in (parts.seen, parts.unseen):
        found = [demo.dictionary_baseline(pair.english) for pair in part]
        assert 10 < sacrebleu.corpus_bleu(found, [[pair.french for pair in part]]).score < 30
    assert demo.dictionary_baseline("The old man sees the white houses.") == "Le vieux homme voit le blanc maisons."


def test_dictionary_knows_every_word(parts):
    words = {word for pair in parts.train for word in re.findall(r"[a-z]+", pair.english.lower())}
    assert not words - set(dictionary.WORDS)
