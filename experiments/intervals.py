"""Means over seeds with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def interval(values: Sequence[float], *, digits: int = 1) -> str:
    """Returns the mean with the half width of its 95 % interval, by Student's t.

    >>> interval([80.0, 82.0, 84.0]), interval([80.0])
    ('82.0 ± 5.0', '80.0')
    """
    mean = f"{float(np.mean(values)):.{digits}f}"
    return f"{mean} ± {half_width(values):.{digits}f}" if len(values) > 1 else mean


def half_width(values: Sequence[float]) -> float:
    """Returns the half width of the 95 % interval of the mean, by Student's t; NaN for one value.

    >>> round(half_width([80.0, 82.0, 84.0]), 3)
    4.968
    """
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else float("nan")
