"""Positions as numbers: t itself, and t / (N - 1) for lengths known before or while the program runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional


def test_raw_positions_are_the_index():
    positions = np.array([[0, 7], [3, 100_000]])
    got = functional.raw_positions(positions, dim=3)
    assert (got.shape, got.dtype) == ((2, 2, 3), jnp.float32)
    for entry in range(3):
        np.testing.assert_array_equal(got[..., entry], positions)


@pytest.mark.parametrize("known", [True, False])
def test_each_sequence_has_its_own_length(known):
    """t / (N - 1) row by row, also where the lengths are values of the program; one token alone is at 0."""
    lengths, positions = np.array([[4], [10], [1]]), np.broadcast_to(np.arange(4), (3, 4))
    run = lambda n: functional.normalized_positions(positions, length=n, dim=2)
    got = run(lengths) if known else jax.jit(run)(lengths)
    assert (got.shape, got.dtype) == ((3, 4, 2), jnp.float32)
    np.testing.assert_allclose(got[0], np.repeat(np.arange(4) / 3, 2).reshape(4, 2), rtol=1e-6)
    np.testing.assert_allclose(got[1, :, 1], np.arange(4) / 9, rtol=1e-6)
    assert got[2, 0].tolist() == [0, 0]


@pytest.mark.parametrize(("length", "got"), [(0, 0), (np.array([[3], [-1]]), -1)])
def test_a_length_without_positions_is_refused(length, got):
    with pytest.raises(ValueError, match=f"length must be at least 1, got {got}"):
        functional.normalized_positions(jnp.zeros((2, 1), jnp.int32), length=length)
