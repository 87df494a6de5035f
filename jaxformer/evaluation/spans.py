"""Spans of labeled words, such as names of persons, and their scores as in conlleval."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from jaxformer.evaluation.resampling import Sample
from jaxformer.evaluation.scores import Score


def spans(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns the kind, the start and the stop of each span of words: B-PER I-PER, also of IOBES; O is outside.

    As in conlleval, a span may begin with I, and one of another kind ends it. Any other label is a span of one word.

    >>> spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    found, before = [], ("O", "")
    for i, label in enumerate(labels):
        mark, _, kind = label.partition("-") if is_span(label) else ("O" if label == "O" else "S", "", label)
        if mark in "IE" and before[0] in "BI" and kind == before[1]:
            found[-1] = kind, found[-1][1], i + 1
        elif mark != "O":
            found.append((kind, i, i + 1))
        before = mark, kind
    return found


def is_span(label: str) -> bool:
    """Returns True for a label of a span of words, such as "B-PER"."""
    return label[:2] in ("B-", "I-", "E-", "S-")


def span_scores(labels: Sequence[Sequence[str]], guesses: Sequence[Sequence[str]]) -> list[Score]:
    """Returns precision, recall and F1 of the spans of sentences, in percent, as conlleval and seqeval compute them.

    >>> [score.value for score in span_scores([["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "B-LOC"]])][:2]
    [50.0, 100.0]

    Raises:
      ValueError: a sentence has another number of guesses than of labels.
    """
    if [*map(len, labels)] != [*map(len, guesses)]:
        raise ValueError("each label needs a guess, sentence by sentence")
    pairs = [(set(spans(ours)), set(spans(theirs))) for ours, theirs in zip(labels, guesses, strict=True)]
    rows = [(len(true & found), len(true), len(found)) for true, found in pairs]
    _, true, found = np.sum(rows, 0, int) if rows else (0, 0, 0)
    how = f"percent, of {true:,} spans and {found:,} guesses"
    scores = []
    for name, part, whole in (("precision", 1, [0, 0, 1]), ("recall", 1, [0, 1, 0]), ("F1", 2, [0, 1, 1])):
        of_sums = functools.partial(_share, part=part, whole=np.array(whole))
        sample = Sample(lambda: rows, of_sums)
        scores.append(Score(name, of_sums(np.sum(rows, 0) if rows else np.zeros(3)), how, sample=sample))
    return scores


def _share(sums: np.ndarray, *, part: int, whole: np.ndarray) -> float:
    """Returns a share in percent: `part` times the first sum, of the sum of those where `whole` is 1; 0 of none."""
    total = float(sums @ whole)
    return 100 * part * float(sums[0]) / total if total else 0.0
