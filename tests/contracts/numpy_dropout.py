"""The dropout of the library in Python integers, written from its definition."""

import numpy as np


def hashed_bits(words, index):
    """Returns the library's dropout hash in Python integers: a round of lowbias32 for each key word.

    The part of the index beyond 32 bits changes the last word.
    """
    cut = (1 << 32) - 1
    bits = (index * 0x9E3779B1 + 0x85EBCA6B) & cut
    *others, last = (int(word) for word in words)
    for word in (*others, last ^ ((index >> 32) * 0xC2B2AE3D & cut)):
        bits ^= word
        bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & cut
        bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & cut
        bits ^= bits >> 16
    return bits


def kept(words, rate, shape):
    """Returns True for the elements of an array of `shape` that dropout keeps, by their row-major index."""
    size = int(np.prod(shape))
    return np.array([hashed_bits(words, i) >= round(rate * 2**32) for i in range(size)]).reshape(shape)
