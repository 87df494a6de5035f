"""The feed-forward network and its activations against NumPy and the error function."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import axes, functional

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


def test_positions_are_independent():
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


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_slopes_far_from_zero(name, dtype):
    """In float16 the cube in `gelu_tanh` is infinite, and its derivative was NaN."""
    slopes = jax.vmap(jax.grad(getattr(functional, name)))(jnp.array([-1e4, -50, 50, 1e4], dtype))
    assert slopes.tolist() == [0, 0, 1, 1]


def test_relu_has_slope_zero_at_zero():
    assert jax.vmap(jax.grad(functional.relu))(jnp.array([-1.0, 0.0, 2.0])).tolist() == [0, 0, 1]


def test_linear_takes_the_dtype_of_its_input():
    y = functional.linear(jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4)), jnp.ones(4))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(y, np.float32), 4.0)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 1, 3, 4), (0, 3, 4)])
def test_linear_keeps_all_dimensions_but_the_last(shape):
    x = DRAW.standard_normal(shape)
    got = functional.linear(*single(x, W_IN, B_IN))
    np.testing.assert_allclose(got, x @ W_IN + B_IN, atol=1e-5)


def products(x):
    """Returns the ranks of the operands of all matrix products in a gradient of `linear`."""
    loss = lambda x, kernel, bias: functional.linear(x, kernel, bias).sum()
    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(*single(x, W_IN, B_IN))
    return [[v.aval.ndim for v in e.invars] for e in program.eqns if e.primitive.name == "dot_general"]


def test_products_of_linear_are_of_matrices():
    """Batch and length are one dimension, so that no gradient needs a transposed copy; on a mesh they stay apart."""
    assert products(X) == [[2, 2]] * 3
    with axes.placing(lambda x, names: x):
        assert [3, 2] in products(X)
        np.testing.assert_allclose(functional.linear(*single(X, W_IN, B_IN)), X @ W_IN + B_IN, atol=1e-5)
