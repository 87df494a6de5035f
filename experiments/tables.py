"""Tables of results in Markdown, and means over seeds with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.evaluation.seeds import half_width as half_width
from jaxformer.evaluation.seeds import interval as interval


def table(*rows: Iterable[object]) -> str:
    """Returns rows as a Markdown table; the first row is the heading.

    >>> print(table(("model", "BLEU"), ("fixed", 1.5)))
    | model | BLEU |
    |---|---|
    | fixed | 1.5 |
    """
    heading, *others = ([str(cell) for cell in row] for row in rows)
    lines = (f"| {' | '.join(cells)} |" for cells in (heading, *others))
    return next(lines) + "\n" + "|---" * len(heading) + "|" + "".join(f"\n{line}" for line in lines)


def percent(share: float | None) -> str:
    """Returns text such as "98.7%"; empty for None."""
    return "" if share is None else f"{100 * share:.1f}%"


def mean_curve(logs: Sequence[Iterable[Mapping[str, Any]]], key: str) -> tuple[list[int], list[float]]:
    """Returns the steps at which all logs have a value, and the means of the values there.

    >>> mean_curve([[{"step": 2, "loss": 1.0}, {"step": 4, "loss": 0.5}], [{"step": 2, "loss": 2.0}]], "loss")
    ([2], [1.5])
    """
    curves = [{entry["step"]: entry[key] for entry in log if key in entry} for log in logs]
    steps = sorted(set(curves[0]).intersection(*curves)) if curves else []
    return steps, [float(np.mean([curve[step] for curve in curves])) for step in steps]
