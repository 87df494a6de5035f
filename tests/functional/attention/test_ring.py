"""The order of positions on a ring of devices; `tests/sharding/test_ring.py` has ring attention itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from jaxformer.functional.attention import ring
from jaxformer.functional.attention.base import make_request


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_zigzag_and_back(shards, axis):
    """Shard r holds the chunks r and 2 P - 1 - r; `unzigzag` is the inverse."""
    x = jnp.arange(16 * 3).reshape(16, 3) if axis == 0 else jnp.arange(16 * 3).reshape(3, 16)
    reordered = functional.zigzag(x, shards, axis=axis)
    chunks, held = (np.split(np.asarray(y), 2 * shards, axis) for y in (x, reordered))
    for r in range(shards):
        np.testing.assert_array_equal(held[2 * r], chunks[r])
        np.testing.assert_array_equal(held[2 * r + 1], chunks[2 * shards - 1 - r])
    np.testing.assert_array_equal(functional.unzigzag(reordered, shards, axis=axis), x)


@pytest.mark.parametrize("reorder", [functional.zigzag, functional.unzigzag])
def test_zigzag_refuses_a_length_that_it_cannot_split(reorder):
    with pytest.raises(ValueError, match="zigzag over 4 shards: the length must be a multiple of 8, got 12"):
        reorder(jnp.zeros((2, 12)), 4)


@pytest.mark.parametrize("zigzag", [False, True], ids=["in order", "zigzag"])
def test_positions_of_a_device(zigzag):
    """All devices together hold every position once, in the order of `zigzag` or of the sequence."""
    devices = ring.Ring("context", 4, (1, 1, 16, 16), zigzag=zigzag)
    held = jnp.concatenate([devices.positions(rank, 4) for rank in range(4)])
    np.testing.assert_array_equal(held, functional.zigzag(jnp.arange(16), 4, axis=0) if zigzag else jnp.arange(16))


@pytest.mark.parametrize(
    ("zigzag", "local_length", "largest", "expected"),
    [(False, 12, 256, 12), (False, 12, 5, 4), (True, 12, 256, 6), (True, 12, 4, 3)],
)
def test_blocks_divide_each_chunk(zigzag, local_length, largest, expected):
    devices = ring.Ring("context", 2, (1, 1, 24, 24), zigzag=zigzag)
    assert devices.block(local_length, largest) == expected


@pytest.mark.parametrize(("length", "shards", "block", "expected"), [(8, 4, 256, 8), (9, 4, 256, 12), (9, 2, 3, 12)])
def test_fill_pads_to_equal_blocks(length, shards, block, expected):
    x = jnp.ones((2, length, 3))
    padded = ring.fill(x, shards, block=block)
    assert padded.shape == (2, expected, 3)
    np.testing.assert_array_equal(padded[:, :length], x)
    assert not np.asarray(padded[:, length:]).any()


def test_refuses_an_array_of_biases():
    query = jax.ShapeDtypeStruct((1, 4, 2, 8), jnp.float32)
    assert ring.refuse(make_request(query, query, query, bias=functional.alibi(2))) is None
    reason = ring.refuse(make_request(query, query, query, bias=jnp.zeros((1, 1, 4, 4))))
    assert reason == "a bias must be a Bias, which is computed tile by tile, not a T x S array"
