"""The loop of every predictor: batches of similar length, results read while later ones are computed, and their order.

Host and device, or several cores, then work at once.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jaxformer.data.batch import by_length
from jaxformer.functional.tokens import Tokens

T = TypeVar("T")
K = TypeVar("K")


def batched(
    run: Callable[[list[int]], Callable[[], object]],
    lengths: Sequence[float],
    rows: int,
    *,
    usual: float = 256,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yields the index of each text or image, and its row of the results, on the host: see `in_order`.

    Args:
      run: returns the program of a batch with its inputs, from the indices of its texts; it is called without waiting
        for earlier results.
      lengths: the lengths of the texts; any one number for images. A batch has texts of similar length.
      rows: the largest number of texts in a batch.
      usual: see `by_length`.
      threads: the number of programs that run at once.
      progress: called with the number of texts of each batch when all have been read.

    >>> import jax.numpy as jnp
    >>> square = lambda indices: lambda: jnp.array(indices) ** 2
    >>> [(index, int(row)) for index, row in batched(square, lengths=[5, 900, 7], rows=2)]
    [(0, 0), (2, 4), (1, 1)]
    """
    runs = ((indices, run(indices)) for indices in by_length(lengths, rows, usual=usual))
    for indices, result in concurrently(runs, threads):
        for row, index in enumerate(indices):
            yield index, jax.tree.map(lambda x, row=row: x[row], result)
        if progress is not None:
            progress(len(indices))


def in_order(results: Iterable[tuple[int, T]]) -> list[T]:
    """Returns the results of texts in order of their indices.

    >>> in_order([(0, "a"), (2, "c"), (1, "b")])
    ['a', 'b', 'c']
    """
    return [result for _, result in sorted(results, key=operator.itemgetter(0))]


def check_texts(**sequences: object) -> None:
    """Checks that sequences of texts are no single text, each of whose characters would be one."""
    for name, texts in sequences.items():
        if isinstance(texts, str):
            raise TypeError(f"{name} must be a sequence of texts, got one text; write [text]")


def padded(sequences: Sequence[Sequence[int] | np.ndarray], shape: tuple[int, int], pad: int) -> Tokens[np.ndarray]:
    """Returns sequences of tokens as the first rows of a batch of this shape.

    >>> tokens = padded([[5, 6], [7]], (3, 2), pad=0)
    >>> tokens.ids.tolist(), tokens.valid.sum(1).tolist()
    ([[5, 6], [7, 0], [0, 0]], [2, 1, 0])
    """
    ids, valid = np.full(shape, pad, np.int32), np.zeros(shape, bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], valid[row, : len(sequence)] = sequence, True
    return Tokens(ids, valid)


def column(values: Iterable[int | tuple[int, ...]], num_rows: int, empty: int | tuple[int, ...]) -> np.ndarray:
    """Returns a value for each row of a batch, ``int32 [B, ...]``; rows after the given ones are `empty`.

    >>> column([5, 6], 3, empty=1).tolist()
    [5, 6, 1]
    """
    given = list(values)
    return np.array([*given, *[empty] * (num_rows - len(given))], np.int32)


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
    pool = concurrent.futures.ThreadPoolExecutor(threads)

    def start(run: Callable[[], T]) -> Callable[[], T]:
        if threads == 1:
            return functools.partial(jax.device_get, run())
        return pool.submit(lambda: jax.device_get(run())).result

    try:
        waiting: collections.deque[tuple[K, Callable[[], T]]] = collections.deque()
        for key, run in runs:
            waiting.append((key, start(run)))
            if len(waiting) > threads:
                key, result = waiting.popleft()
                yield key, result()
        for key, result in waiting:
            yield key, result()
    finally:
        pool.shutdown(cancel_futures=True)
