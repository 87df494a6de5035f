"""No gradient is a sum in bfloat16: the programs of gradients are searched for such sums."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, modules, pure
from jaxformer.functional.bias import DenseBias
from jaxformer.functional.sums import add_shared

NARROW = jnp.dtype("bfloat16")
ROWS = np.arange(6)
WIDE = 20_000


def ones(*shape: int, dtype: Any = np.float32):
    return jax.device_put(np.ones(shape, dtype))


def narrow(*shape):
    return ones(*shape, dtype=NARROW)


def narrow_sums(jaxpr):
    """Yields the shapes of the sums, and of the gathers' transposes, that a program takes in bfloat16."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("reduce_sum", "scatter-add", "cumsum") and equation.invars[0].aval.dtype == NARROW:
            yield name, equation.invars[0].aval.shape
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from narrow_sums(getattr(inner, "jaxpr", inner))


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
    assert not list(narrow_sums(jax.make_jaxpr(gradient)(argument).jaxpr))


def test_a_narrow_sum_is_found():
    gradient = jax.jit(jax.grad(lambda b: (b + narrow(6, 3)).astype(jnp.float32).sum()))
    assert list(narrow_sums(jax.make_jaxpr(gradient)(narrow(1, 3)).jaxpr)) == [("reduce_sum", (6, 3))]


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
