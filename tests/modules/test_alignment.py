"""Alignments against the functions of the papers, with the parameters that the module owns."""

import inspect

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, masks, modules
from tests.modules.small import built, normal

B, T, S, D, M, A = 2, 3, 4, 6, 5, 7
VALID = jnp.asarray([[1, 1, 1, 1], [1, 1, 0, 0]], bool)


def run(kind, num_memory=M, fill=0.0):
    module, params = built(lambda rngs: modules.Alignment(D, num_memory, A, kind=kind, rngs=rngs))
    query, memory = normal(B, T, D), jnp.where(VALID[..., None], normal(B, S, num_memory, seed=1), fill)
    keys = module.call(modules.Alignment.keys, params, memory)
    return params, query, memory, module.apply(params, query, keys, memory, valid=VALID)


def test_additive_is_bahdanaus_and_concat_the_same():
    params, query, memory, got = run("additive")
    kernels = {name: params[name]["kernel"] for name in ("w_query", "w_key")}
    mask = masks.padding(VALID)
    expected = functional.additive_attention(query, memory, memory, **kernels, v=params["v"], mask=mask)
    chex.assert_trees_all_close(got, expected, rtol=0, atol=1e-5)
    chex.assert_trees_all_close(run("concat")[3], expected, rtol=0, atol=1e-5)


def test_general_and_dot_are_luongs():
    params, query, memory, got = run("general")
    assert list(params) == ["w_key"]
    mask = masks.padding(VALID)
    w = params["w_key"]["kernel"].T
    chex.assert_trees_all_close(
        got, functional.multiplicative_attention(query, memory, memory, w=w, mask=mask), rtol=0, atol=1e-5
    )
    params, query, memory, got = run("dot", D)
    assert not params
    expected = functional.multiplicative_attention(query, memory, memory, w=jnp.eye(D), mask=mask)
    chex.assert_trees_all_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["additive", "general"])
def test_padding_of_any_content_changes_no_bit(kind):
    (output, weights), other = run(kind)[3], run(kind, fill=np.nan)[3]
    assert not np.asarray(weights)[1, :, 2:].any()
    np.testing.assert_allclose(weights.sum(-1), np.ones((B, T)), atol=1e-6)
    np.testing.assert_array_equal(output, other[0])


def test_dot_needs_equal_sizes():
    with pytest.raises(ValueError, match="dot attention needs equal sizes of queries and memory, got 6, 5"):
        run("dot")


def test_an_unknown_kind_is_refused():
    unchecked = inspect.unwrap(modules.Alignment.__init__)  # without the type checks of the tests
    with pytest.raises(ValueError, match="kind must be one of additive, dot, general, concat, got 'bahdanau'"):
        unchecked(object.__new__(modules.Alignment), 2, 2, 2, kind="bahdanau", rngs=nnx.Rngs(0))
