"""Results that are read one step after their dispatch, so that host and device work at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def one_behind(results: Iterable[T]) -> Iterator[T]:
    """Yields each result after the next one has been requested; two of them exist at a time.

    JAX dispatches a computation and returns before it ends. If the results of batches are read in a loop over this
    iterator, the device computes one batch while the host reads the one before.

    >>> def results():
    ...     for number in (1, 2):
    ...         print("dispatched", number)
    ...         yield number
    >>> for number in one_behind(results()):
    ...     print("read", number)
    dispatched 1
    dispatched 2
    read 1
    read 2
    """
    waiting: list[T] = []
    for result in results:
        waiting.append(result)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting
