"""The feed-forward network and its activations against NumPy; no gradient is a sum in bfloat16."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import axes, functional, modules, pure
from jaxformer.functional.bias import DenseBias
from jaxformer.functional.feed_forward import add_shared, scaled
from tests.contracts.jaxprs import equations

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


def test_activations():
    x = np.linspace(-4, 4, 41)
    np.testing.assert_allclose(functional.relu(single(x)[0]), np.maximum(x, 0), atol=0)
    np.testing.assert_allclose(functional.gelu(single(x)[0]), [v * NORMAL(v) for v in x], atol=2e-6)
    np.testing.assert_allclose(functional.gelu_tanh(single(x)[0]), [v * NORMAL(v) for v in x], atol=2e-3)
    assert float(jnp.abs(functional.gelu_tanh(single(x)[0]) - functional.gelu(single(x)[0])).max()) > 1e-4


def test_gelu_of_bfloat16_is_rounded_once():
    x = jnp.linspace(-4, 4, 41, dtype=jnp.bfloat16)
    wide = np.asarray(x, np.float64)
    by_tanh = wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))) / 2
    for function, exact in ((functional.gelu, [v * NORMAL(v) for v in wide]), (functional.gelu_tanh, by_tanh)):
        np.testing.assert_allclose(function(x).astype(jnp.float32), exact, rtol=2**-8)


def test_a_factor_is_not_rounded_to_bfloat16():
    """All token vectors, or logits, would be too large by the same tenth of a percent."""
    x = single(DRAW.standard_normal(4096))[0].astype(jnp.bfloat16)
    wide, table = np.asarray(x, np.float64), jnp.ones((1, 768))
    embedded = lambda: modules.Embedding(4096, 768, rngs=nnx.Rngs(0))
    for factor, results in (
        (768**0.5, scaled(x, 768**0.5)),
        (768**-0.5, modules.Head(table, scale=768**-0.5).logits(jnp.zeros((4096, 768), x.dtype).at[:, 0].set(x))[:, 0]),
        (2.0598, functional.deep_norm(2.0598)(x, jnp.zeros_like, lambda y: y)),
    ):
        found = np.asarray(results, np.float64)
        np.testing.assert_allclose((wide @ found) / (wide @ wide), factor, rtol=2e-4)
    net = embedded()
    found = np.asarray(net(jnp.arange(4096), dtype=jnp.dtype(jnp.bfloat16))[:, 0], np.float64)
    wide = np.asarray(net.table[...], np.float64)[:, 0]
    np.testing.assert_allclose((wide @ found) / (wide @ wide), 768**0.5, rtol=2e-4)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_slopes_far_from_zero(name, dtype):
    """In float16 the cube in `gelu_tanh` is infinite, and its derivative was NaN."""
    slopes = jax.vmap(jax.grad(getattr(functional, name)))(jnp.array([-1e4, -50, 50, 1e4], dtype))
    assert slopes.tolist() == [0, 0, 1, 1]


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


NARROW = jnp.dtype("bfloat16")
ROWS = np.arange(6)
WIDE = 20_000


def ones(*shape: int, dtype: Any = np.float32):
    return jax.device_put(np.ones(shape, dtype))


def narrow(*shape):
    return ones(*shape, dtype=NARROW)


def narrow_sums(gradient, argument):
    """The shapes of the sums, and of the gathers' transposes, that a program takes in bfloat16."""
    names = "reduce_sum", "scatter-add", "cumsum"
    sums = (e for e, _ in equations(jax.make_jaxpr(gradient)(argument).jaxpr) if e.primitive.name in names)
    return [(e.primitive.name, e.invars[0].aval.shape) for e in sums if e.invars[0].aval.dtype == NARROW]


def tile(bias):
    return bias.tile(ones(2, 3, 6, 4), jnp.asarray(ROWS), jnp.asarray(ROWS))


def applied(make, x, **options):
    net = pure(lambda config, rngs: make(rngs), None)
    return lambda params: net.apply(params, x, **options), net.shapes


def embeddings(rngs):
    tokens = modules.Embedding(5, 4, rngs=rngs)
    return modules.Embeddings(tokens, modules.LearnedPositions(6, 4, rngs=rngs), dtype="bfloat16")


def patches(rngs):
    return modules.PatchEmbeddings((4, 4), 2, 8, dtype="bfloat16", rngs=rngs)


def gain(rngs):
    return modules.GridAttention(4, 2, form="gain", rngs=rngs)


CASES = {
    "linear": lambda: (lambda b: functional.linear(narrow(2, 6, 4), ones(4, 3), b), ones(3)),
    "convolution": lambda: (lambda b: functional.convolution(narrow(2, 6, 4), ones(3, 4, 3), b), ones(3)),
    "transformer_xl": lambda: (
        lambda u: functional.transformer_xl(narrow(2, 6, 3, 4), ones(8, 3, 4), content=u, position=u)[0],
        ones(3, 4),
    ),
    "t5_bias": lambda: (lambda table: tile(functional.t5_bias(table)), narrow(8, 3)),
    "relative_keys": lambda: (lambda table: tile(functional.relative_keys(table)), narrow(5, 4)),
    "array in a bias": lambda: (lambda array: tile(DenseBias(array)), narrow(1, 3, 1, 1)),
    "additive_similarity": lambda: (
        lambda qk: functional.additive_similarity(qk[0], qk[1], ones(4)),
        (narrow(5, 4), narrow(6, 4)),
    ),
    "Embeddings": lambda: applied(embeddings, functional.Tokens(ones(3, 6, dtype=np.int32))),
    "PatchEmbeddings": lambda: applied(patches, ones(3, 4, 4, 3)),
    "GridAttention": lambda: applied(gain, narrow(3, 2, 2, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_summed_in_float32(case):
    function, argument = CASES[case]()
    gradient = jax.grad(lambda x: function(x).astype(jnp.float32).sum())
    assert not narrow_sums(gradient, argument)


def test_a_narrow_sum_is_found():
    gradient = jax.jit(jax.grad(lambda b: (b + narrow(6, 3)).astype(jnp.float32).sum()))
    assert narrow_sums(gradient, narrow(1, 3)) == [("reduce_sum", (6, 3))]


@pytest.mark.parametrize(("dtype", "expected"), [(np.float32, 20_000.0), (NARROW, 19_968.0)], ids=["wide", "narrow"])
def test_the_gradient_of_a_shared_term_is_exact(dtype, expected):
    """A narrow term has the nearest number of its dtype; summed in bfloat16, 20,000 ones were 8,192."""
    found = jax.jit(jax.grad(lambda b: add_shared(narrow(WIDE, 1), b).astype(jnp.float32).sum()))(ones(1, dtype=dtype))
    np.testing.assert_array_equal(found.astype(np.float32), [expected])


def test_the_sum_has_the_dtype_of_its_inputs():
    x, term = np.linspace(-3, 7, 105, dtype=np.float32).reshape(5, 7, 3), np.linspace(0.1, 2, 21, dtype=np.float32)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        x, term = jnp.asarray(x, dtype), jnp.asarray(term).reshape(7, 3)
        np.testing.assert_array_equal(add_shared(x, term), x + term.astype(dtype)[None])
