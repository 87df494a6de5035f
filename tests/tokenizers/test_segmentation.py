"""Sampled segmentations have the published probabilities, and are the same on every machine."""

import collections
import itertools
import math
import os
import random
import subprocess
import sys
import tracemalloc

import pytest

from jaxformer import demo
from jaxformer.errors import ConfigError
from jaxformer.tokenizers.segmentation import SPACE, Subwords, bpe_sampler, unigram_sampler
from jaxformer.tokenizers.segmentation import segmentations as every_segmentation
from jaxformer.tokenizers.subwords import SubwordTokenizer

LINES = [text for pair in demo.generate(300) for text in (pair.english, pair.french)]
PIECES = {"a": -2.0, "b": -1.5, "ab": -1.0, "ba": -2.5, "bab": -3.0, SPACE: -1.0, f"{SPACE}a": -2.0}
UNIGRAM = Subwords(PIECES, {piece: token for token, piece in enumerate(PIECES)}, lambda character: [100])


def sample(sampler, lines, *, seed=0):
    draw = random.Random(seed).random
    return [sampler(line, draw) for line in lines]


def segmentations(text):
    """Every way to cut a text into pieces."""
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
        if all(piece in PIECES for piece in pieces):
            yield pieces


def test_long_words_are_not_kept_in_memory():
    """A sentence of a language without spaces is one word."""
    sampler, draw = unigram_sampler(UNIGRAM, 0.5), random.Random(0)
    words = ["".join(draw.choices("ab", k=50)) for _ in range(100)]
    tracemalloc.start()
    for word in words:
        sampler(word, draw.random)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 200_000  # their lattices have more than a megabyte


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_unigram_samples_have_the_published_probabilities(alpha):
    text, number = f"babab{SPACE}ab", 20_000
    weights = {
        tuple(UNIGRAM.ids[piece] for piece in pieces): math.exp(alpha * sum(PIECES[piece] for piece in pieces))
        for pieces in segmentations(text)
    }
    drawn = collections.Counter(map(tuple, sample(unigram_sampler(UNIGRAM, alpha), [text] * number, seed=1)))
    assert set(drawn) == set(weights)
    for tokens, weight in weights.items():
        expected = weight / sum(weights.values())
        assert abs(drawn[tokens] / number - expected) < 5 * math.sqrt(expected / number)


def test_every_segmentation_is_found_once():
    text = f"babab{SPACE}ab"
    expected = sorted(tuple(UNIGRAM.ids[piece] for piece in pieces) for pieces in segmentations(text))
    assert sorted(every_segmentation(UNIGRAM, text, most=100)) == expected
    assert len(expected) > 10
    assert every_segmentation(UNIGRAM, "xb", most=1) == [(100, UNIGRAM.ids["b"])]
    with pytest.raises(ConfigError, match="'babab ab' can be segmented in more than 9 ways; give a shorter text"):
        every_segmentation(UNIGRAM, text, most=9)


def test_unknown_characters_are_spelled():
    assert sample(unigram_sampler(UNIGRAM, 50.0), ["xab", ""]) == [[100, 2], []]
    assert sample(bpe_sampler(UNIGRAM, 0.0), ["xab", ""]) == [[100, 2], []]


def test_merges_are_dropped_with_their_probability():
    ranks = {"a": -9.0, "b": -8.0, "ab": -0.0, "abab": -1.0}
    subwords = Subwords(ranks, {piece: token for token, piece in enumerate(ranks)}, lambda character: [100])
    number = 20_000
    drawn = collections.Counter(map(tuple, sample(bpe_sampler(subwords, 0.3), ["abab"] * number, seed=1)))
    expected = {(3,): 0.7**3, (2, 2): 0.7**2 * 0.3, (2, 0, 1): 0.21, (0, 1, 2): 0.21, (0, 1, 0, 1): 0.09}
    assert sum(expected.values()) == pytest.approx(1)
    assert set(drawn) == set(expected)
    for tokens, probability in expected.items():
        assert drawn[tokens] / number == pytest.approx(probability, abs=5 * math.sqrt(probability / number))


def merged(subwords, alpha, word, draw):
    """The tokens of a word by the definition: of all merges of neighbors, the best that was not dropped comes next."""
    edges, dropped = list(range(len(word) + 1)), set()
    while True:
        triples = set(zip(edges, edges[1:], edges[2:], strict=False)) - dropped
        found = [(-subwords.scores[word[a:c]], (a, b, c)) for a, b, c in triples if word[a:c] in subwords.scores]
        if not found:
            return subwords.tokens(word[a:b] for a, b in itertools.pairwise(edges))
        _, triple = min(found)
        if draw() < alpha:
            dropped.add(triple)
        else:
            edges.remove(triple[1])


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_dropout_merges_as_its_definition(alpha):
    """Also in ties, and where the same pair of letters occurs again."""
    pieces = [*"abc", "ab", "bc", "aa", "abab", "aab", "bcab", "aaa"]
    subwords = Subwords({x: -float(i // 2) for i, x in enumerate(pieces)}, {x: i for i, x in enumerate(pieces)}, ord)
    draw = random.Random(0)
    words = ["".join(draw.choices("abc", k=draw.randrange(1, 30))) for _ in range(200)]
    one, other = random.Random(1).random, random.Random(1).random
    assert [bpe_sampler(subwords, alpha)(word, one) for word in words] == [
        merged(subwords, alpha, word, other) for word in words
    ]
    assert one() == other()


def test_dropout_looks_up_each_merge_of_a_long_word_once():
    """A line without spaces is one word: of 10,000 letters, it took a minute."""

    class Counted(dict):
        number = 0

        def get(self, piece, default=None):
            self.number += 1
            return super().get(piece, default)

        def __contains__(self, piece):
            self.number += 1
            return super().__contains__(piece)

    scores = Counted({piece: -float(i) for i, piece in enumerate([*"ab", "ab", "ba", "aba", "abab"])})
    bpe_sampler(Subwords(scores, dict(scores), lambda letter: [0]), 0.1)("ab" * 500, random.Random(0).random)
    assert scores.number < 4 * 1000


@pytest.mark.parametrize(("kind", "alpha"), [("unigram", 1000.0), ("bpe", 0.0)])
def test_the_limit_is_the_best_segmentation(kind, alpha):
    """An independent implementation, sentencepiece, finds the best one."""
    tokenizer = SubwordTokenizer.train(LINES, vocab_size=400, kind=kind)
    lines = [*LINES[:200], " two  spaces ", "日本 🎉", "\u2581", "\n", ""]
    best = [ids.tolist() for ids in tokenizer.encode(lines)]
    assert [ids.tolist() for ids in tokenizer.sample(lines, seed=3, alpha=alpha)] == best


@pytest.mark.parametrize("kind", [pytest.param("unigram", marks=pytest.mark.full), "bpe"])
def test_samples_are_the_same_in_every_process(kind):
    code = (
        "import hashlib\n"
        "from jaxformer import demo\n"
        "LINES = [text for pair in demo.generate(300) for text in (pair.english, pair.french)]\n"
        "from jaxformer.tokenizers.subwords import SubwordTokenizer\n"
        f"tokenizer = SubwordTokenizer.train(LINES, vocab_size=400, kind={kind!r})\n"
        "ids = [line.tolist() for line in tokenizer.sample(LINES, seed=1)]\n"
        "assert ids != [line.tolist() for line in tokenizer.sample(LINES, seed=2)]\n"
        "assert [tokenizer.decode(line) for line in ids] == LINES\n"
        "print(hashlib.sha256(repr(ids).encode()).hexdigest())\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(printed) == 1
