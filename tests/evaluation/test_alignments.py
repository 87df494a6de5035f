"""Alignment error rates, against numbers computed by hand."""

import numpy as np
import pytest

from jaxformer.evaluation.alignments import alignment_error_rate, diagonal_links, strongest_links


@pytest.mark.parametrize(
    ("found", "sure", "possible", "expected"),
    [
        ({(0, 0), (1, 1)}, {(0, 0), (1, 1)}, None, 0),
        ({(0, 1)}, {(0, 0)}, None, 1),
        # |A & S| = 1, |A & P| = 2, |A| = 3, |S| = 2: 1 - 3 / 5.
        ({(0, 0), (1, 2), (2, 2)}, {(0, 0), (1, 1)}, {(0, 0), (1, 1), (1, 2)}, 0.4),
        # A sure link is possible even where the possible links leave it out.
        ({(0, 0), (1, 2), (2, 2)}, {(0, 0), (1, 1)}, {(1, 2)}, 0.4),
        # Only a possible link is found: it is no error, but a sure one is missing: 1 - (0 + 1) / (1 + 1).
        ({(1, 2)}, {(0, 0)}, {(1, 2)}, 0.5),
        # P = S: 1 - F1, of precision 1/2 and recall 1/3.
        ({(0, 0), (1, 2)}, {(0, 0), (1, 1), (2, 2)}, None, 0.6),
        (set(), {(0, 0)}, None, 1),
    ],
)
def test_one_sentence(found, sure, possible, expected):
    rate = alignment_error_rate([found], [sure], None if possible is None else [possible])
    assert rate == pytest.approx(expected)


def test_sizes_are_summed_over_the_corpus():
    """1 - (2 + 2) / (4 + 2), where the mean of the rates of the sentences would be (0 + 0.5) / 2."""
    found = [{(0, 0)}, {(0, 0), (1, 1), (2, 2)}]
    assert alignment_error_rate(found, [{(0, 0)}, {(0, 0)}]) == pytest.approx(1 / 3)


def test_refusals():
    with pytest.raises(ValueError, match="alignments of 1 sentences, sure links of 2"):
        alignment_error_rate([set()], [set(), set()])
    with pytest.raises(ValueError, match="sure links of 1, possible links of 0"):
        alignment_error_rate([set()], [set()], [])
    with pytest.raises(ValueError, match="at least one link"):
        alignment_error_rate([set()], [set()])


def test_a_target_word_is_linked_to_its_strongest_source_word():
    weights = np.array([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.5, 0.2, 0.3]])
    assert strongest_links(weights) == {(1, 0), (2, 1), (0, 2)}


@pytest.mark.parametrize(
    ("num_source", "num_target", "expected"),
    [
        (3, 3, {(0, 0), (1, 1), (2, 2)}),
        (4, 2, {(1, 0), (3, 1)}),
        (2, 4, {(0, 0), (0, 1), (1, 2), (1, 3)}),
        (3, 1, {(1, 0)}),
    ],
)
def test_the_diagonal(num_source, num_target, expected):
    assert diagonal_links(num_source, num_target) == expected
