"""Scores of classifications, against their definitions."""

import numpy as np
import pytest

from jaxformer.evaluation.classification import accuracy, matthews


def test_accuracy():
    assert accuracy(1, 8).value == 12.5
    with pytest.raises(ValueError, match="at least one prediction, got 0"):
        accuracy(0, 0)


@pytest.mark.parametrize("classes", [2, 5])
def test_matthews_is_a_correlation(classes):
    """Of two classes, Pearson's of the numbers; of several, that of indicator variables summed over classes."""
    random = np.random.default_rng(0)
    labels = random.integers(classes, size=400)
    predictions = np.where(random.random(400) < 0.4, labels, random.integers(classes, size=400))
    one_hot = lambda x: np.eye(classes)[x] - np.eye(classes)[x].mean(0)
    a, b = one_hot(labels), one_hot(predictions)
    expected = (a * b).sum() / ((a * a).sum() * (b * b).sum()) ** 0.5
    assert matthews(labels, predictions).value == pytest.approx(100 * expected)
    if classes == 2:
        assert matthews(labels, predictions).value == pytest.approx(100 * np.corrcoef(labels, predictions)[0, 1])
        assert matthews(labels, 1 - predictions).value == pytest.approx(-100 * expected)


def test_a_constant_prediction_has_no_correlation():
    assert matthews([0, 1, 1], [1, 1, 1]).value == 0.0
    with pytest.raises(ValueError, match="each label needs a prediction"):
        matthews([0, 1], [0])
    with pytest.raises(ValueError, match="each label needs a prediction"):
        matthews(np.eye(2, dtype=int), np.eye(2, dtype=int))  # one-hot
