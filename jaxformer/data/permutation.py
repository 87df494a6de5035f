"""Permutations of any size as functions of an index, so that no array holds them: a Feistel network."""

from __future__ import annotations

import functools
import math

import numpy as np

ROUNDS = 8
"""The number of times that one half of an index is changed by the other."""

CHUNK = 1 << 16
"""The number of indices that are computed at once, in the processor's cache."""


def permuted(indices: np.ndarray, size: int, *key: int) -> np.ndarray:
    """Returns the images of indices under a permutation of ``range(size)``, a pure function of `size` and `key`.

    A Feistel network permutes the pairs of numbers below a and b, with a b at least `size` and little more; an index
    that leads out of the range is permuted again, until it is in it (Black and Rogaway 2002).

    Args:
      indices: integers from 0 to size - 1.
      key: integers from 0, such as a seed and an epoch.

    >>> sorted(permuted(np.arange(10), 10, 7, 1).tolist()) == list(range(10))
    True
    """
    keys, found = _keys(key), np.array(indices, np.uint64)
    upper = math.isqrt(size - 1) + 1
    bounds = np.uint64(upper), np.uint64(-(-size // upper))
    for start in range(0, len(found), CHUNK):
        part = found[start : start + CHUNK]
        part[:] = _network(part, keys, bounds)
        while len(left := np.flatnonzero(part >= size)):
            part[left] = _network(part[left], keys, bounds)
    return found.astype(np.int64)


def _network(numbers: np.ndarray, keys: np.ndarray, bounds: tuple[np.uint64, np.uint64]) -> np.ndarray:
    """Returns the images of numbers below the product of two bounds."""
    halves = list(np.divmod(numbers, bounds[1]))
    for number, key in enumerate(keys):
        changed, other = number % 2, 1 - number % 2
        halves[changed] = (halves[changed] + _mixed(halves[other] ^ key)) % bounds[changed]
    return halves[0] * bounds[1] + halves[1]


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Returns 32 well-mixed bits of each number; changes `numbers`."""
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(31)
    numbers *= np.uint64(0x94D049BB133111EB)
    numbers >>= np.uint64(32)
    return numbers


@functools.lru_cache(maxsize=256)
def _keys(key: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence((len(key), *key)).generate_state(ROUNDS, np.uint64)
