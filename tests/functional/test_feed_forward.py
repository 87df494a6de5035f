"""The feed-forward network and its activations against NumPy and the error function."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional

DRAW = np.random.default_rng(1)
X, W_IN, B_IN, W_OUT, B_OUT = (DRAW.standard_normal(shape) for shape in ((2, 3, 4), (4, 6), (6,), (6, 5), (5,)))
NORMAL = lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2)))


def single(*xs):
    return tuple(jnp.asarray(x, jnp.float32) for x in xs)


@pytest.mark.parametrize("biased", [True, False])
def test_two_linear_maps(biased):
    b_in, b_out = (B_IN, B_OUT) if biased else (0.0, 0.0)
    expected = np.maximum(0, X @ W_IN + b_in) @ W_OUT + b_out
    inputs = [
        None if x is None else single(x)[0] for x in (W_IN, B_IN if biased else None, W_OUT, B_OUT if biased else None)
    ]
    np.testing.assert_allclose(functional.feed_forward(single(X)[0], *inputs), expected, atol=1e-5)


def test_gated():
    gate = X @ DRAW.standard_normal((4, 6))
    w_gate = np.linalg.lstsq(X.reshape(-1, 4), gate.reshape(-1, 6), rcond=None)[0]
    expected = (gate / (1 + np.exp(-gate)) * (X @ W_IN)) @ W_OUT
    np.testing.assert_allclose(functional.gated_feed_forward(*single(X, w_gate, W_IN, W_OUT)), expected, atol=1e-5)


def test_positions_do_not_mix():
    """The Jacobian between different tokens is exactly 0."""
    w_in, b_in, w_out, b_out = single(W_IN, B_IN, W_OUT, B_OUT)
    jacobian = jax.jacobian(lambda x: functional.feed_forward(x, w_in, b_in, w_out, b_out))(single(X[0])[0])
    for i in range(3):
        for j in range(3):
            assert np.asarray(jacobian[i, :, j]).any() == (i == j)


def test_activations():
    x = np.linspace(-4, 4, 41)
    np.testing.assert_allclose(functional.relu(single(x)[0]), np.maximum(x, 0), atol=0)
    np.testing.assert_allclose(functional.gelu(single(x)[0]), [v * NORMAL(v) for v in x], atol=2e-6)
    np.testing.assert_allclose(functional.gelu_tanh(single(x)[0]), [v * NORMAL(v) for v in x], atol=2e-3)
    assert float(jnp.abs(functional.gelu_tanh(single(x)[0]) - functional.gelu(single(x)[0])).max()) > 1e-4


def test_gelu_of_bfloat16_is_rounded_once():
    x = jnp.linspace(-4, 4, 41, dtype=jnp.bfloat16)
    exact = [v * NORMAL(v) for v in np.asarray(x, np.float64)]
    np.testing.assert_array_equal(functional.gelu(x), jnp.asarray(exact, jnp.float32).astype(jnp.bfloat16))


def test_relu_has_slope_zero_at_zero():
    assert jax.vmap(jax.grad(functional.relu))(jnp.array([-1.0, 0.0, 2.0])).tolist() == [0, 0, 1]


def test_linear_takes_the_dtype_of_its_input():
    y = functional.linear(jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4)), jnp.ones(4))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(y, np.float32), 4.0)
