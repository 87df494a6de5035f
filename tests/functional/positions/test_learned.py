"""Learned positions are rows of a table, which has an end."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from jaxformer.functional.positions import check_positions


def test_learned_looks_rows_up():
    table = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(functional.learned(table, jnp.array([[3, 0]])), [[[9, 10, 11], [0, 1, 2]]])


def test_a_table_has_an_end():
    check_positions(4, 4)
    with pytest.raises(ValueError, match=r"length 5 has no learned position beyond 4"):
        check_positions(5, 4)
