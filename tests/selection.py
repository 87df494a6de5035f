"""Which parameters of a test `make test` runs, and which are left to `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """All the values, as parameters; those that are not chosen are of the full tests."""
    values = list(values)
    assert all(value in values for value in chosen), f"{chosen} are not all among the parameters"
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.full) for value in values]
