"""A permutation without an array: each index has its own image, whatever else is asked for."""

import numpy as np
import pytest

from jaxformer.data.permutation import permuted


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 65_537])
def test_every_index_occurs_once(size):
    images = permuted(np.arange(size), size, 3, 1)
    assert images.dtype == np.int64
    assert np.array_equal(np.sort(images), np.arange(size))
    few = np.arange(0, size, 7)
    assert np.array_equal(permuted(few, size, 3, 1), images[few])


def test_values_are_the_same_everywhere():
    """Runs are resumed with other versions of numpy and on other machines."""
    assert permuted(np.arange(8), 1000, 5, 2).tolist() == [476, 856, 560, 113, 785, 92, 634, 939]
    assert permuted(np.array([0, 2**40]), 2**41 + 1, 0).tolist() == [1597129883155, 1071428617439]


def test_order_looks_random():
    """As many images of the first half are in each tenth, neighbors are apart, and keys differ."""
    size = 100_000
    images = permuted(np.arange(size), size, 1, 0)
    counts = np.bincount(images[: size // 2] * 10 // size, minlength=10)
    assert np.abs(counts - size / 20).max() < 5 * np.sqrt(size / 20)
    steps = np.abs(np.diff(images)) / size
    assert abs(steps.mean() - 1 / 3) < 0.005
    assert abs(np.corrcoef(np.arange(size), images)[0, 1]) < 0.02
    for other in ((1, 1), (2, 0), (1, 0, 0)):
        assert (images == permuted(np.arange(size), size, *other)).sum() < 20
