"""Heads are scored by gold alignments: the best is the one whose strongest weights are the gold links."""

import numpy as np
import pytest

from jaxformer import demo
from jaxformer.demo import Pair
from jaxformer.inspection.attention_maps import PieceMap
from jaxformer.tasks.translation import alignment

PAIRS = [
    Pair("The white house.", "La maison blanche.", "", alignment=((0, 0), (1, 2), (2, 1), (3, 3))),
    Pair("She sings.", "Elle chante.", "", alignment=((0, 0), (1, 1), (2, 2))),
]


class Fixed:
    """A translator whose layer 1 has the gold alignment in head 0 and only the end of the sentence in head 1."""

    def attentions(self, sources, targets):
        assert (list(sources), list(targets)) == ([p.english for p in PAIRS], [p.french for p in PAIRS])
        return [self.attention(pair) for pair in PAIRS]

    def attention(self, pair):
        source, target = demo.words(pair.english), demo.words(pair.french)
        weights = np.full((2, 2, len(target) + 1, len(source) + 1), 1 / (len(source) + 1))
        weights[0] = np.eye(len(source) + 1)[[min(t, len(source)) for t in range(len(target) + 1)]]
        weights[1] = 0.4 * np.eye(len(source) + 1)[-1]
        for i, j in pair.alignment:
            weights[1, 0, j, :] = 0.9 * np.eye(len(source) + 1)[i]
        return PieceMap((*source, "</s>"), (*target, "</s>"), weights)


def test_every_head_and_mean_is_scored():
    rates = alignment.head_error_rates(Fixed(), PAIRS)
    diagonal = 1 - 2 * (2 + 3) / (7 + 7)
    assert rates == {
        (0, 0): pytest.approx(diagonal),
        (0, 1): pytest.approx(diagonal),
        (0, None): pytest.approx(diagonal),
        (1, 0): 0,
        (1, 1): 1,  # the end of the sentence is no word
        (1, None): 0,
        (None, None): pytest.approx(diagonal),
    }
    assert alignment.diagonal_error_rate(PAIRS) == pytest.approx(diagonal)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ((1, 2), "head 2 of decoder layer 1"),
        ((0, None), "the mean of the heads of decoder layer 0"),
        ((None, None), "the mean of all heads"),
    ],
)
def test_a_head_in_words(head, expected):
    assert alignment.describe(head) == expected
