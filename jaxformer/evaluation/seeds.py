"""Means over seeds with intervals, differences between groups and the seeds that they need, and resampled BLEU."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import nctdtrinc, stdtr, stdtrit

from jaxformer.evaluation import scores

POWER = 0.8
"""The probability with which a difference is found, by which numbers of seeds are counted (Cohen 1988)."""

MOST_SEEDS = 1000
"""A difference that needs more seeds counts as one that training again cannot show."""


def interval(values: Sequence[float], *, digits: int = 1) -> str:
    """Returns the mean with the half width of its 95 % interval, by Student's t.

    >>> interval([80.0, 82.0, 84.0]), interval([80.0])
    ('82.0 ± 5.0', '80.0')
    """
    width = f" ± {half_width(values):.{digits}f}" * (len(values) > 1)
    return f"{np.mean(values):.{digits}f}{width}"


def half_width(values: Sequence[float]) -> float:
    """Returns the half width of the 95 % interval of the mean, by Student's t; NaN for one value.

    >>> round(half_width([80.0, 82.0, 84.0]), 3)
    4.968
    """
    n = len(values)
    return float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / n**0.5) if n > 1 else float("nan")


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between the means of two groups of trainings, and what their numbers of seeds can show.

    Attributes:
      value: the mean of the second group less that of the first.
      half_width: of the 95 % interval of `value`.
      p_value: of the same test, two-sided; NaN if the values do not vary.
      detectable: the difference that these numbers of seeds find at the level of 5 % with the probability `POWER`.
      seeds: the number of seeds of each group that would find `value` with that probability; None above `MOST_SEEDS`.
      paired: whether the test paired the seeds.
    """

    value: float
    half_width: float
    p_value: float
    detectable: float
    seeds: int | None
    paired: bool

    def __str__(self) -> str:
        digits = 4 if max(abs(self.value), self.detectable) < 1 else 2
        seeds = f"more than {MOST_SEEDS:,}" if self.seeds is None else f"{self.seeds:,}"
        return (
            f"{self.value:+.{digits}f} ± {self.half_width:.{digits}f}, p = {self.p_value:.3f}"
            f"{', seeds paired' * self.paired}; detectable: {self.detectable:.{digits}f}; seeds needed: {seeds} each"
        )


def difference(first: Sequence[float], second: Sequence[float], *, paired: bool = False) -> Difference | None:
    """Compares the means of two groups of trainings that differ in their seeds only; None without two values of each.

    The spread of few seeds is itself uncertain, so `Difference.detectable` and `Difference.seeds` are rough.

    Args:
      paired: pairs the values, as of trainings with the same seeds, which share their batches and often their first
        parameters (Student's t test of the differences); otherwise the test is Welch's, for which the spreads may
        differ.

    >>> print(difference([24.1, 24.5, 24.3], [25.0, 25.6, 25.3]))
    +1.00 ± 0.61, p = 0.012; detectable: 0.78; seeds needed: 3 each

    Raises:
      ValueError: `paired`, and the numbers of values differ.
    """
    n, m = len(first), len(second)
    if paired and n != m:
        raise ValueError(f"paired values must be equally many, got {n} and {m}")
    if min(n, m) < 2:
        return None
    value = float(np.mean(second) - np.mean(first))
    if paired:
        parts = [float(np.var(np.subtract(second, first), ddof=1)) / n]
        degrees, spread = n - 1.0, (n * parts[0]) ** 0.5
    else:
        parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
        squares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
        degrees, spread = sum(parts) ** 2 / squares if squares else 1.0, ((n * parts[0] + m * parts[1]) / 2) ** 0.5
    error = sum(parts) ** 0.5
    rounding = 1e-12 * max(map(abs, (*first, *second)))
    if error <= rounding:  # equal values
        return Difference(value, 0.0, float("nan"), 0.0, 2 if abs(value) > rounding else None, paired)
    return Difference(
        value,
        float(stdtrit(degrees, 0.975)) * error,
        2 * float(stdtr(degrees, -abs(value) / error)),
        spread * detectable_effect(n, m, paired=paired),
        seeds_needed(value / spread, paired=paired),
        paired,
    )


def detectable_effect(n: int, m: int, *, paired: bool = False) -> float:
    """Returns the difference, in standard deviations, that n and m seeds find at 5 % with the probability `POWER`.

    Args:
      paired: the standard deviation is that of the differences between paired values.

    >>> round(detectable_effect(26, 26), 2), round(detectable_effect(3, 3), 2)            # Cohen 1988, table 2.4.1
    (0.79, 3.07)
    """
    degrees, error = (n - 1, 1 / n) if paired else (n + m - 2, 1 / n + 1 / m)
    return float(nctdtrinc(degrees, 1 - POWER, stdtrit(degrees, 0.975))) * error**0.5


def seeds_needed(effect: float, *, paired: bool = False) -> int | None:
    """Returns the number of seeds of each group that find a difference of this many standard deviations.

    >>> seeds_needed(0.8), seeds_needed(-0.5), seeds_needed(0.01)                          # Cohen 1988, table 2.4.1
    (26, 64, None)
    """
    low, high = 1, MOST_SEEDS + 1
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = detectable_effect(middle, middle, paired=paired) <= abs(effect)
        low, high = (low, middle) if is_enough else (middle, high)
    return high if high <= MOST_SEEDS else None


@dataclasses.dataclass(frozen=True)
class Resampled:
    """The difference of two groups of translators on the same sentences, over other sentences and other seeds.

    Attributes:
      value: the mean BLEU of the second group less that of the first.
      low: the lower end of the 95 % interval of `value`.
      high: the upper end.
      reversed: the share of draws in which the difference has the other sign, or is 0.
      draws: the number of draws.
    """

    value: float
    low: float
    high: float
    reversed: float
    draws: int

    def __str__(self) -> str:
        return (
            f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]; {self.reversed:.1%} of {self.draws:,} draws of "
            "sentences and seeds reverse it"
        )


def resampled(
    first: Sequence[Sequence[str]],
    second: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    paired: bool = False,
    lowercase: bool = False,
    language: str = "",
    draws: int = 1000,
) -> Resampled:
    """Compares the mean BLEU of two groups of translators by resampling sentences and seeds together.

    Each draw takes sentences with replacement, the same for all translators, as `scores.paired_bootstrap` does; and of
    the n seeds of each group n - 1 with replacement, for which the variance of a mean is that of n trainings (Rao and
    Wu 1988). With one seed, only the sentences vary.

    Args:
      first: the translations of each seed.
      paired: draws the same seeds of both groups.
      language: see `scores.bleu`.

    Raises:
      ValueError, ConfigError: see `scores.bleu`; or a group is empty; or `paired`, and their sizes differ.
    """
    if not first or not second or (paired and len(first) != len(second)):
        raise ValueError(f"there must be translators of both groups, got {len(first)} and {len(second)}")
    how: Any = {"lowercase": lowercase, "language": language}
    rng, means, drawn = np.random.default_rng(0), [], []
    for group in (first, second):
        samples = [x for said in group if (x := scores.bleu(said, references, **how).sample)]
        if not drawn or not paired:
            drawn.append(rng.integers(len(group), size=(max(len(group) - 1, 1), draws)))
        table = np.stack([x.resampled(draws=draws) for x in samples])  # [seeds, draws], of the same sentences
        means.append((np.mean([x.score() for x in samples]), np.take_along_axis(table, drawn[-1], 0).mean(0)))
    (first_mean, first_draws), (second_mean, second_draws) = means
    value, differences = float(second_mean - first_mean), second_draws - first_draws
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    return Resampled(value, low, high, float(np.mean(differences * math.copysign(1.0, value) <= 0)), draws)
