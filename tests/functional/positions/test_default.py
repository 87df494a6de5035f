"""Positions of sequences whose length is a number or a symbol."""

import jax
import numpy as np
import pytest

from jaxformer.functional.positions import first_positions


@pytest.mark.parametrize(("length", "constant"), [(0, True), (5, True), (8, True), (9, False)])
def test_a_known_length(length, constant):
    """A constant of the program, unless it is long."""
    positions = first_positions(length, most=8)
    assert isinstance(positions, np.ndarray if constant else jax.Array)
    np.testing.assert_array_equal(positions, range(length))


@pytest.mark.parametrize(("constraints", "size"), [(["s <= 6"], 8), (["s <= 8"], 8), (["s <= 9"], "s"), ([], "s")])
def test_a_symbol(constraints, size):
    """A constant for all lengths up to the bound, if that is not too many."""
    (length,) = jax.export.symbolic_shape("s", constraints=constraints)
    found = []

    def run(x):
        positions = first_positions(x.shape[0], most=8)
        found.append((type(positions) is np.ndarray, str(positions.shape[0])))
        return positions[: x.shape[0]] if isinstance(size, str) else x

    jax.export.export(jax.jit(run))(jax.ShapeDtypeStruct((length,), np.float32))
    assert found == [(size == 8, str(size))]
