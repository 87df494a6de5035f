"""Spans of words: drawn spans are read back from both notations, and their scores are those of sets."""

import numpy as np
import pytest

from jaxformer.evaluation.spans import span_scores, spans


def drawn(seed, num_words=30):
    """Spans that do not overlap, of two kinds; some follow one another at once."""
    random, found, at = np.random.default_rng(seed), [], 0
    while (start := at + int(random.integers(3))) + 3 < num_words:
        at = start + int(random.integers(1, 4))
        found.append((("PER", "LOC")[random.integers(2)], start, at))
    return found


def written(found, marks, num_words=30):
    """The labels of spans; `marks` are those of the first word, those inside, the last word and a single one."""
    labels = ["O"] * num_words
    for kind, start, stop in found:
        place = [marks[1]] * (stop - start)
        place[0], place[-1] = marks[0], marks[2]
        place = [marks[3]] if len(place) == 1 else place
        labels[start:stop] = [f"{mark}-{kind}" for mark in place]
    return labels


@pytest.mark.parametrize("marks", ["BIIB", "BIES"])
@pytest.mark.parametrize("seed", range(5))
def test_spans_are_read_back(seed, marks):
    assert spans(written(drawn(seed), marks)) == drawn(seed)


def test_scores_are_those_of_sets():
    sides = [[written(drawn(seed), "BIIB") for seed in seeds] for seeds in ([0, 1, 2], [0, 3, 4])]
    true, guessed = (
        {(i, *span) for i, seed in enumerate(seeds) for span in drawn(seed)} for seeds in ([0, 1, 2], [0, 3, 4])
    )
    both = len(true & guessed)
    shares = both / len(guessed), both / len(true), 2 * both / (len(true) + len(guessed))
    assert [score.value for score in span_scores(*sides)] == [pytest.approx(100 * share) for share in shares]
    assert 0 < both < len(true)
