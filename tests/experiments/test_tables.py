"""Tables and means over seeds, by their examples."""

import doctest

from experiments import tables


def test_examples():
    assert doctest.testmod(tables) == (0, 2)
    assert tables.interval([1.0, 2.0, 3.0, 4.0, 5.0]) == "3.0 ± 2.0"
    assert tables.mean_curve([], "loss") == ([], [])
