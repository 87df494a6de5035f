"""Scores of classifications: accuracy, and the Matthews correlation of labels and predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxformer.evaluation.scores import Score


def accuracy(correct: float, count: float) -> Score:
    """Returns the share of correct predictions, in percent.

    >>> str(accuracy(3, 4))
    'accuracy 75.00  [percent of 4 predictions]'

    Raises:
      ValueError: `count` is not positive.
    """
    if not count > 0:
        raise ValueError(f"an accuracy needs at least one prediction, got {count}")
    return Score("accuracy", 100 * correct / count, f"percent of {count:,.0f} predictions")


def matthews(labels: Sequence[int] | np.ndarray, predictions: Sequence[int] | np.ndarray) -> Score:
    """Returns 100 times the Matthews correlation of labels and predictions, for any number of classes (Gorodkin 2004).

    See `matthews_of_counts`.

    >>> str(matthews([1, 1, 0, 0], [1, 0, 0, 0]))
    'Matthews correlation 57.74  [times 100, 4 predictions]'

    Raises:
      ValueError: there are no labels, or another number of predictions; or they are not one class per example.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.shape != predictions.shape or labels.ndim != 1 or labels.size == 0:
        raise ValueError(
            f"each label needs a prediction, got {list(labels.shape)} labels and {list(predictions.shape)} predictions"
        )
    classes = np.union1d(labels, predictions)[:, None]
    return matthews_of_counts(
        int((labels == predictions).sum()), (labels == classes).sum(1), (predictions == classes).sum(1)
    )


def matthews_of_counts(correct: float, labels: np.ndarray, predictions: np.ndarray) -> Score:
    """Returns 100 times the Matthews correlation from the correct predictions and the counts of each class.

    With n examples, c correct predictions, and t and p the counts of each class among labels and predictions:
    ``(c n - t p) / sqrt((n^2 - p p) (n^2 - t t))``; 0 if all labels, or all predictions, are of one class.
    """
    true, predicted = np.asarray(labels, float), np.asarray(predictions, float)
    n = float(true.sum())
    covariance = correct * n - float(true @ predicted)
    scale = float(((n**2 - predicted @ predicted) * (n**2 - true @ true)) ** 0.5)
    return Score("Matthews correlation", 100 * covariance / scale if scale else 0.0, f"times 100, {n:,.0f} predictions")
