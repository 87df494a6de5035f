"""Intervals of scores, and of differences between two systems, by bootstrap resampling of the examples (Koehn 2004).

They say what another sample of examples could have given, and nothing about other training seeds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.reprs import brief

LEVEL = 0.95
"""The share of resamples whose scores are within an interval."""

FEWEST = 10
"""The number of examples below which there is no interval: it would be too narrow."""

_CHUNK = 1 << 22
"""The largest number of counts of examples that are held at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """The examples of a score: statistics of each, and the score that follows from their sums.

    >>> Sample.mean([1, 0, 1, 1]).score()
    75.0
    """

    make: Callable[[], np.ndarray | Sequence[Sequence[float]]]
    """Function that returns the statistics, numbers ``[examples, statistics]``; it is called once, if at all."""
    of_sums: Callable[[np.ndarray], float]
    """Function from sums of statistics to the score."""

    __repr__ = brief

    @staticmethod
    def mean(values: Sequence[float] | np.ndarray, scale: float = 100) -> Sample:
        """Returns the sample of the mean of one value for each example, times `scale`."""
        of_sums = lambda sums: scale * float(sums[0]) / float(sums[1])
        return Sample(lambda: np.stack([np.asarray(values, float), np.ones(len(values))], 1), of_sums)

    @functools.cached_property
    def statistics(self) -> np.ndarray:
        """The statistics of all examples, ``float64 [examples, statistics]``."""
        return np.asarray(self.make(), np.float64)

    def score(self, chosen: np.ndarray | slice = slice(None)) -> float:
        """Returns the score of some of the examples, by default of all."""
        return float(self.of_sums(self.statistics[chosen].sum(0)))

    def resampled(self, chosen: np.ndarray | slice = slice(None), *, draws: int = 1000) -> np.ndarray:
        """Returns the scores of resamples of the examples ``[draws]``; for one number of examples always the same."""
        statistics = self.statistics[chosen]
        number, random = len(statistics), np.random.default_rng(0)
        at_once = max(1, _CHUNK // number)
        scores = []
        for start in range(0, draws, at_once):
            counts = random.multinomial(number, np.full(number, 1 / number), size=min(at_once, draws - start))
            scores += [self.of_sums(sums) for sums in counts @ statistics]
        return np.array(scores)


def interval(
    sample: Sample, chosen: np.ndarray | slice = slice(None), *, draws: int = 1000
) -> tuple[float, float] | None:
    """Returns the percentile interval of a score of some examples; None for fewer than `FEWEST` of them.

    >>> low, high = interval(Sample.mean([1, 0] * 50))
    >>> low < 50 < high
    True
    """
    if len(sample.statistics[chosen]) < FEWEST:
        return None
    return _percentiles(sample.resampled(chosen, draws=draws))


class Difference(NamedTuple):
    """The difference of two scores of the same examples: that of a system, less that of a baseline."""

    value: float
    low: float
    high: float
    p_value: float
    """The share of resamples in which the absolute difference is larger than its mean by more than the observed one, as
    in sacrebleu and Moses."""


def difference(system: Sample, baseline: Sample, *, draws: int = 1000) -> Difference | None:
    """Returns the difference of two scores of the same examples in the same order: paired bootstrap resampling.

    None for fewer than `FEWEST` examples.

    Raises:
      ValueError: the systems have different numbers of examples.
    """
    number = len(system.statistics)
    if number != len(baseline.statistics):
        raise ValueError(f"{number:,} examples of one system, but {len(baseline.statistics):,} of the other")
    if number < FEWEST:
        return None
    value = system.score() - baseline.score()
    drawn = system.resampled(draws=draws) - baseline.resampled(draws=draws)
    sizes = np.abs(drawn)
    extreme = int((sizes - sizes.mean() > abs(value)).sum())
    return Difference(value, *_percentiles(drawn), 1.0 if value == 0 else (extreme + 1) / (draws + 1))


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)
