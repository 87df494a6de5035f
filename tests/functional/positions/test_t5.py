"""The buckets of T5 are half exact and half logarithmic."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets(bidirectional):
    """Half exact, half logarithmic, the last for all longer distances; one-way, keys ahead have distance 0."""
    ahead = jnp.arange(-300, 301)
    buckets = np.asarray(functional.t5_bucket(ahead, num_buckets=32, max_distance=128, bidirectional=bidirectional))
    behind, ahead_of = buckets[300::-1], buckets[300:]
    exact, last = (8, 15) if bidirectional else (16, 31)
    assert behind[:exact].tolist() == list(range(exact))
    assert (np.diff(behind) >= 0).all()
    assert set(behind[128:]) == {last}
    assert sorted(set(behind)) == list(range(last + 1))
    assert (ahead_of[1:] == behind[1:] + 16).all() if bidirectional else not ahead_of.any()


def test_t5_buckets_at_integer_quotients():
    """80 = 64 (100 / 64)^(32 / 64) exactly, where a float32 logarithm is one bucket short."""
    options = {"num_buckets": 128, "max_distance": 100, "bidirectional": False}
    assert functional.t5_bucket(jnp.array([-79, -80]), **options).tolist() == [94, 96]


def test_t5_refuses_a_table_that_cannot_work():
    with pytest.raises(
        ValueError, match="at least 4 buckets and a max_distance above 0, got 2 buckets and max_distance 128"
    ):
        functional.t5_bias(jnp.zeros((2, 4)))
    with pytest.raises(ValueError, match="a max_distance above 8, got 32 buckets and max_distance 8"):
        functional.t5_bias(jnp.zeros((32, 4)), max_distance=8)
