"""Numbers as a document prints them, compared with numbers that the package computes."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import numpy.typing as npt


def check(value: npt.ArrayLike, printed: str, *, wrong: str = "") -> None:
    """Checks that numbers round to those of a text, and prints it.

    Args:
      printed: numbers with as many digits as a document gives them, row by row; ";" and "|" may stand between rows.
      wrong: the numbers that the document has instead, if `printed` are not its own. They must differ.

    Raises:
      AssertionError: a number rounds to something else, or the document's numbers are right after all.

    >>> check([0.045388, 0.767918, 0.186694], "0.045 0.768 0.187", wrong="0.045 0.769 0.186")
    ✓ 0.045 0.768 0.187   (the document has 0.045 0.769 0.186)
    >>> check(1 / 3, "0.34")
    Traceback (most recent call last):
    AssertionError: 0.34 should be 0.333333...
    """
    numbers = np.asarray(value, np.float64).reshape(-1)
    assert (found := _first_difference(numbers, printed)) is None, found
    if wrong:
        assert _first_difference(numbers, wrong) is not None, f"the document is right: {wrong}"
        wrong = f"   (the document has {wrong})"
    print(f"✓ {printed}{wrong}")


def _first_difference(numbers: np.ndarray[Any, np.dtype[np.float64]], printed: str) -> str | None:
    """Returns a complaint about the first number of a text that is not the rounded one; None if all are right."""
    words = printed.replace(";", " ").replace("|", " ").replace(",", "").split()
    assert len(words) == len(numbers), f"{len(words)} numbers are printed, and {len(numbers)} computed"
    for number, word in zip(numbers, words, strict=True):
        exponent = decimal.Decimal(word).as_tuple().exponent
        assert isinstance(exponent, int)
        half = 0.5 * 10.0**exponent if exponent < 0 else 0.5  # of the last digit
        if not abs(number - float(word)) <= half * (1 + 1e-3) + 2e-6 * abs(number):
            return f"{word} should be {number:.6g}..."
    return None
