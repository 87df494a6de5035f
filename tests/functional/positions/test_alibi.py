"""The slopes of ALiBi are the paper's, and its bias extends to longer sequences."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [(8, [2.0**-i for i in range(1, 9)]), (3, [2**-4, 2**-8, 2**-2]), (6, [0.25, 0.0625, 2**-6, 2**-8, 0.5, 0.125])],
)
def test_alibi_slopes(num_heads, slopes):
    """Powers of two have the paper's slopes; other numbers interleave those of the next power, as in its code."""
    np.testing.assert_allclose(functional.alibi(num_heads).slopes, slopes)


def test_alibi_extends_without_retraining():
    """The bias of a longer sequence holds that of a shorter one."""
    tile = lambda n: functional.alibi(2).tile(None, jnp.arange(n), jnp.arange(n))
    np.testing.assert_array_equal(tile(9)[..., :5, :5], tile(5))
