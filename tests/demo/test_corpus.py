"""The built-in corpus: correct French, one translation per sentence, no test sentence in training."""

import os
import re
import subprocess
import sys
import time

import pytest

from jaxformer import demo
from jaxformer.demo import corpus as grammar
from jaxformer.demo.phrases import Pair


@pytest.fixture(scope="module")
def drawn():
    """The first 10,000 pairs, and the seconds of processor time that they took."""
    begin = time.process_time()
    return demo.generate(10_000), time.process_time() - begin


def test_size_speed_and_determinism(parts, drawn):
    pairs, seconds = drawn
    assert seconds < 5
    assert len({pair.english for pair in pairs}) == 10_000
    assert len({pair.english for pair in parts.train}) == len(parts.train) >= 20_000
    assert demo.generate(300) == demo.generate(600)[:300] != demo.generate(300, seed=1)


def test_the_corpus_is_the_same_in_every_process():
    """Sets of strings have another order in every process; none may affect the corpus."""
    code = "from jaxformer import demo; print([ascii(p.french) for p in demo.generate(1000)])"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(found) == 1


@pytest.mark.parametrize("num_pairs", [24_000, pytest.param(72_000, marks=pytest.mark.full)])
def test_no_test_sentence_in_training(num_pairs):
    """The smaller number is that of `parts`, which are made once."""
    parts = demo.splits(num_train=num_pairs)
    assert len(parts.train) == num_pairs
    english, french = ({getattr(p, side) for p in parts.train} for side in ("english", "french"))
    for part in (parts.validation, parts.seen, parts.unseen, demo.EXAMPLES):
        assert not english & {p.english for p in part}
        assert not french & {p.french for p in part}
    others = [{p.english for p in part} for part in (parts.validation, parts.seen, parts.unseen)]
    assert sum(map(len, others)) == len(set.union(*others))


@pytest.mark.full
@pytest.mark.parametrize("num_pairs", [1, pytest.param(1000, marks=pytest.mark.full)])
def test_any_number_of_pairs(num_pairs, parts):
    """Of the parts of a larger corpus, all but the training pairs stay the same."""
    few = demo.splits(num_train=num_pairs)
    assert few.train == parts.train[:num_pairs]
    assert (few.validation, few.seen, few.unseen) == (parts.validation, parts.seen, parts.unseen)


def test_combinations_are_unseen(parts):
    seen = {feature for pair in parts.train for feature in pair.features}
    assert all(pair.features - seen for pair in parts.unseen)
    assert {feature for pair in parts.unseen for feature in pair.features} >= {("that", "past not")}
    assert ("that", "past not") not in seen
    assert ("that", "progressive not") in seen
    assert len({pair.construction for pair in parts.unseen}) > 15
    assert {p.construction for p in parts.unseen} <= {p.construction for p in parts.train}


def test_words_of_the_tests_are_trained_on(parts):
    """Every English word; every French form but for a rare one."""

    def words(part, side):
        return [word for pair in part for word in re.findall(r"\w+", getattr(pair, side).lower())]

    english, french = (set(words(parts.train, side)) for side in ("english", "french"))
    for part in (parts.seen, parts.unseen):
        assert set(words(part, "english")) <= english
        assert sum(word not in french for word in words(part, "french")) <= 3


def test_one_translation_per_sentence(corpus):
    """Drawn again with another seed, a sentence has the same translation."""
    first = {pair.english: pair.french for pair in corpus}
    again = 0
    for pair in demo.generate(6_000, seed=1):
        again += pair.english in first
        assert first.get(pair.english, pair.french) == pair.french
    assert again > 100


def test_a_second_translation_is_refused(monkeypatch):
    drawn = iter([Pair("It is a test.", "C'est un test.", ""), Pair("It is a test.", "C'est un essai.", "")])
    monkeypatch.setattr(grammar, "CONSTRUCTIONS", {lambda pick: next(drawn): 1})
    with pytest.raises(AssertionError, match=r"un test.*un essai"):
        demo.generate(2)


@pytest.mark.parametrize("num_pairs", [10_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_examples_follow_the_grammar(num_pairs, drawn):
    pairs, _ = drawn
    known = {pair.english: pair.french for pair in (pairs if num_pairs == len(pairs) else demo.generate(num_pairs))}
    assert len(demo.EXAMPLES) == 5
    assert all(known.get(pair.english, pair.french) == pair.french for pair in demo.EXAMPLES)


def test_vocabulary_and_lengths(corpus):
    words = {word for pair in corpus for word in re.findall(r"[a-z]+", pair.english.lower())}
    assert 300 < len(words) < 700
    lengths = [len(pair.english.split()) for pair in corpus]
    assert max(lengths) <= 20
    assert 6 < sum(lengths) / len(lengths) < 10
    assert len({pair.construction for pair in corpus}) >= 30


UNLINKED = re.compile(  # the form before a consonant, before a vowel
    r"\b((ma|sa) (école|église|orange|écharpe|histoire|île|assiette)|(ce|beau|vieux|nouveau) "
    r"(acteur|ami|avocat|étudiant|enfant|homme|oiseau|oncle|hôtel|hôpital|ordinateur|arbre|article))\b"
)
HIATUS = re.compile(r"\b(le|la|de|ne|je|que|me|ce|au|du) (\w+)", re.IGNORECASE)


def test_no_sentence_lacks_an_elision_or_a_contraction(corpus):
    aspirated = ("héros", "hibou", "hiboux", "haricot", "haricots")
    for pair in corpus:
        for word, following in HIATUS.findall(pair.french):
            vowel = following[0] in "aeiouyéèêàâôûîïœh" and following not in aspirated
            assert not vowel or (word.lower() in ("au", "du") and following[0] == "h") or following == "y", pair
        assert not re.search(r"\b([Dd]e les?|[Àà] les?)\b", pair.french), pair
        assert not re.search(r"(l|d|n|j|qu|m|c)'([bcdfgjklmnpqrstvwxz]|héros|hibou|haricot)", pair.french.lower()), pair
        assert not UNLINKED.search(pair.french), pair
        assert "  " not in pair.french


CLOSINGS = re.compile(r"\b(pas|jamais|rien|personne)\b|(?<! est)(?<! sont)(?<! était)(?<! étaient) plus\b")


def test_negation_has_both_halves(corpus):
    for pair in corpus:
        opened = len(re.findall(r"\b(?:ne |n')", pair.french.lower()))
        closed = len(CLOSINGS.findall(pair.french.lower()))
        assert opened <= 1
        if opened:
            assert closed >= 1, pair
        elif re.search(r"\b(not|never|cannot|no longer|nothing|nobody)\b", pair.english.lower()):
            pytest.fail(f"no negation: {pair}")


def test_text_for_a_language_model():
    text = demo.text(300)
    assert text == "".join(f"{pair.english}\n" for pair in demo.generate(300))
    assert demo.text(300, seed=1) != text
    assert len(set(text.splitlines())) == 300
