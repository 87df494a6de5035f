"""Word alignments: their error rate, and the alignment that attention implies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

Link = tuple[int, int]
"""A link between the source word and the target word at these indices."""


def alignment_error_rate(
    alignments: Sequence[Collection[Link]],
    sure: Sequence[Collection[Link]],
    possible: Sequence[Collection[Link]] | None = None,
) -> float:
    """Computes the alignment error rate ``1 - (|A & S| + |A & P|) / (|A| + |S|)`` of a corpus (Och and Ney 2003).

    The counts are summed over sentences. Without `possible`, P = S and the rate is 1 - F1.

    Args:
      alignments: A, the predicted links of each sentence pair.
      sure: S, the links that an alignment must have.
      possible: P, the links that an alignment may have; sure links always count as possible too.

    >>> alignment_error_rate([{(0, 0), (1, 1)}], sure=[{(0, 0)}], possible=[{(1, 1), (1, 2)}])
    0.0
    >>> alignment_error_rate([{(0, 0), (1, 1)}], sure=[{(0, 0)}])
    0.33333333333333337

    Raises:
      ValueError: the numbers of sentences differ, or there are no links.
    """
    if possible is None:
        possible = sure
    if not len(alignments) == len(sure) == len(possible):
        raise ValueError(
            f"alignments of {len(alignments)} sentences, sure links of {len(sure)}, possible links of {len(possible)}"
        )
    correct = total = 0
    for links, certain, allowed in zip(map(set, alignments), map(set, sure), map(set, possible), strict=True):
        correct += len(links & certain) + len(links & (certain | allowed))
        total += len(links) + len(certain)
    if not total:
        raise ValueError("an alignment error rate needs at least one link")
    return 1 - correct / total


def strongest_links(weights: np.ndarray) -> set[Link]:
    """Links each target word to the source word with the largest weight in ``[T, S]`` (Garg et al. 2019)."""
    return {(int(source), target) for target, source in enumerate(weights.argmax(-1))}


def diagonal_links(num_source: int, num_target: int) -> set[Link]:
    """Links target word t of T to the source word at the same relative position, ``floor((t + 1/2) S / T)``."""
    return {((2 * t + 1) * num_source // (2 * num_target), t) for t in range(num_target)}
