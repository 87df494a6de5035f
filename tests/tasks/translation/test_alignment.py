"""Heads are scored by gold alignments: the best is the one whose strongest weights are the gold links."""

import numpy as np
import pytest

from jaxformer import demo
from jaxformer.demo import Pair
from jaxformer.inspection.attention_maps import AttentionWeights
from jaxformer.tasks.translation import alignment
from jaxformer.tokenizers.characters import CharacterTokenizer

PAIRS = [
    Pair("The white house.", "La maison blanche.", "", alignment=((0, 0), (1, 2), (2, 1), (3, 3))),
    Pair("She sings.", "Elle chante.", "", alignment=((0, 0), (1, 1), (2, 2))),
]


class Fixed:
    """A translator with the gold alignment in layer 1, head 0, but for full stops, which look at the end token."""

    tokenizer = CharacterTokenizer("a")

    def attentions(self, sources, targets):
        assert (list(sources), list(targets)) == ([p.english for p in PAIRS], [p.french for p in PAIRS])
        return [self.attention(pair) for pair in PAIRS]

    def attention(self, pair):
        source, target = demo.words(pair.english), demo.words(pair.french)
        end, eye = len(source), np.eye(len(source) + 1)
        weights = np.zeros((2, 2, len(target) + 1, len(source) + 1))
        weights[0] = eye[[min(t, end) for t in range(len(target) + 1)]]
        weights[1, 1] = eye[end]
        weights[1, 0] = eye[end]
        for i, j in pair.alignment[:-1]:
            weights[1, 0, j] = 0.3 * eye[end] + 0.3 * eye[end - 1] + 0.4 * eye[i]
        return AttentionWeights((*source, "</s>"), (*target, "</s>"), weights)


def test_every_head_and_mean_is_scored():
    rates = alignment.head_error_rates(Fixed(), PAIRS)
    diagonal = 1 - 2 * (2 + 3) / (7 + 7)
    marks = 1 - 2 * 2 / (7 + 7)  # every word is linked to the full stop
    assert rates == {
        (0, 0): pytest.approx(diagonal),
        (0, 1): pytest.approx(diagonal),
        (0, None): pytest.approx(diagonal),
        (1, 0): 0,
        (1, 1): pytest.approx(marks),
        (1, None): pytest.approx(marks),  # 0.2 on the word, 0.65 on the end
        (None, None): pytest.approx(diagonal),  # 0.5 on the diagonal, 0.1 on the word
    }
    assert alignment.diagonal_error_rate(PAIRS) == pytest.approx(diagonal)


@pytest.mark.parametrize(
    ("head", "expected", "options"),
    [
        ((1, 2), "head 2 of decoder layer 1", "--layer 1 --head 2"),
        ((0, None), "the mean of the heads of decoder layer 0", "--layer 0"),
        ((None, 1), "the mean of head 1 of all layers", "--head 1"),
        ((None, None), "the mean of all heads", "--mean"),
    ],
)
def test_a_head_in_words_and_as_options(head, expected, options):
    assert alignment.describe(head) == expected
    assert alignment.options(head) == options
