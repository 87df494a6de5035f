"""Results that are read while later ones are computed, so that host and device, or several cores, work at once."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import jax

T = TypeVar("T")
K = TypeVar("K")


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


def concurrently(runs: Iterable[tuple[K, Callable[[], T]]], threads: int) -> Iterator[tuple[K, T]]:
    """Calls functions that run programs, up to `threads` at once; yields their keys and results, on the host, in order.

    On a CPU, JAX runs the programs that one thread dispatches one after another, and a program of small operations
    keeps only one core busy. With one thread, each program is dispatched before the result of the last one is read.

    >>> import functools
    >>> import jax.numpy as jnp
    >>> runs = ((number, functools.partial(jnp.square, number)) for number in range(3))
    >>> [(key, int(result)) for key, result in concurrently(runs, threads=2)]
    [(0, 0), (1, 1), (2, 4)]
    """
    if threads == 1:
        for key, result in one_behind((key, run()) for key, run in runs):
            yield key, jax.device_get(result)
        return
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        waiting: collections.deque[tuple[K, concurrent.futures.Future[T]]] = collections.deque()
        for key, run in runs:
            waiting.append((key, pool.submit(lambda run=run: jax.device_get(run()))))
            if len(waiting) > threads:
                key, future = waiting.popleft()
                yield key, future.result()
        for key, future in waiting:
            yield key, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
