"""Causal convolution follows its formula, and its gradient is that of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from tests.modules.small import normal


def formula(x, kernel, bias, dilation):
    result = np.zeros((*x.shape[:2], kernel.shape[2]))
    for t in range(x.shape[1]):
        for k in range(min(len(kernel), t // dilation + 1)):
            result[:, t] += x[:, t - k * dilation] @ kernel[k]
    return result + bias


@pytest.mark.parametrize(("taps", "dilation", "length"), [(1, 1, 4), (3, 1, 7), (3, 2, 7), (2, 9, 5)])
def test_formula_and_gradient(taps, dilation, length):
    """The last case reaches beyond the start of the sequence, where there is nothing."""
    x, kernel, bias, upstream = normal(2, length, 4), normal(taps, 4, 3, seed=1), normal(3), normal(2, length, 3)
    run = lambda x, kernel, bias: functional.causal_convolution(x, kernel, bias, dilation=dilation)
    output, pull = jax.vjp(run, x, kernel, bias)
    arrays = [np.asarray(a, np.float64) for a in (x, kernel, bias)]
    np.testing.assert_allclose(output, formula(*arrays, dilation), atol=1e-5)
    for slope, i in zip(pull(upstream), range(3), strict=True):
        move = np.random.default_rng(i).standard_normal(arrays[i].shape)
        nudged = [[a + sign * 1e-4 * move if j == i else a for j, a in enumerate(arrays)] for sign in (1, -1)]
        high, low = ((formula(*arrays, dilation) * np.asarray(upstream)).sum() for arrays in nudged)
        assert float((slope * move.astype(np.float32)).sum()) == pytest.approx((high - low) / 2e-4, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("taps", "dilation"), [(0, 1), (2, 0)])
def test_refusals(taps, dilation):
    with pytest.raises(ValueError, match=f"at least 1 long, got {taps} and {dilation}"):
        functional.causal_convolution(jnp.ones((1, 3, 2)), jnp.ones((taps, 2, 2)), dilation=dilation)
