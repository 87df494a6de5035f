"""Learned positions are rows of a table of fixed length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from jaxformer.functional.positions import check_given_positions, check_positions


def test_learned_looks_rows_up():
    table = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(functional.learned(table, jnp.array([[3, 0]])), [[[9, 10, 11], [0, 1, 2]]])


@pytest.mark.parametrize("position", [-1, 4])
def test_positions_without_a_row_are_refused(position):
    """They had another row: the last, or one that counts from the end. Traced ones still have."""
    table = jnp.arange(12.0).reshape(4, 3)
    with pytest.raises(ValueError, match=f"position {position} has no learned vector: the table covers 0 to 3"):
        functional.learned(table, jnp.array([0, position]))
    assert jax.jit(functional.learned)(table, jnp.array([0, position])).shape == (2, 3)


def test_positions_beyond_the_table_are_refused():
    check_positions(4, 4)
    with pytest.raises(ValueError, match=r"length 5 has no learned position beyond 4"):
        check_positions(5, 4)


@pytest.mark.parametrize("position", [-3, 4])
def test_given_positions_have_rows(position):
    """From the offset before 0 to the end of the table; traced values are unknown."""
    check_given_positions(jnp.array([[-2, 3]]), 2, 4)
    check_given_positions(np.zeros((1, 0), int), 2, 4)
    message = f"position {position} has no learned vector: the table covers -2 to 3; train with a larger"
    for wrong in (np.array([[0, position]]), jnp.array([[0, position]])):
        with pytest.raises(ValueError, match=message):
            check_given_positions(wrong, 2, 4)
    jax.jit(lambda x: check_given_positions(x, 2, 4))(jnp.array([position]))
