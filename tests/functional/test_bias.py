"""Biases of a query that continues a cached sequence, and of queries that may attend to no key."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.bias import Repeated, dense_bias
from tests.contracts import biases
from tests.contracts.attention import B, S, T, arrays
from tests.modules.small import quick
from tests.selection import first


@pytest.mark.parametrize("name", first(["alibi", "t5", "relative"], "relative"))
def test_bias_with_a_cache(name):
    """Row t of the full result is the one query at position t against the keys so far, with ``bias.at(t)``."""
    query, key, value = jnp.asarray(np.random.default_rng(8).standard_normal((3, 2, 6, 4, 8)), jnp.float32)
    bias = {
        "alibi": functional.alibi(4),
        "t5": functional.t5_bias(jnp.asarray(np.random.default_rng(1).standard_normal((8, 4)), jnp.float32)),
        "relative": functional.relative_keys(
            jnp.asarray(np.random.default_rng(1).standard_normal((7, 8)), jnp.float32)
        ),
    }[name]
    full = functional.attention(query, key, value, mask=masks.causal(), bias=bias)
    weights = functional.attention_weights(query, key, mask=masks.causal(), bias=bias, rows=[5, 2])
    attend = quick(functional.attention, static_argnames="implementation")
    for t, implementation in ((0, "blockwise"), (3, "reference"), (5, "blockwise")):
        row = attend(
            query[:, t : t + 1], key, value, mask=masks.causal(t), bias=bias.at(t), implementation=implementation
        )
        np.testing.assert_allclose(row[:, 0], full[:, t], atol=1e-5)
    np.testing.assert_allclose(jnp.einsum("bnts,bsnj->btnj", weights, value), full[:, jnp.array([5, 2])], atol=1e-5)


FEW_BIASES = first(biases.BIASES, "transformer-xl", "relative keys by head", "sum")
COMBINES_WITH_QUERIES = "relative keys", "relative keys by head", "transformer-xl", "shifted"


def slopes_of_tables(attend, name, fill):
    """Returns the gradients of query and learned arrays, where two queries hold `fill` and may attend to no key."""
    query, key, value, upstream = arrays()
    allowed = np.ones((B, 4, T, S), bool)
    allowed[0, :, 1] = allowed[1, 2, 3] = False
    query = query.at[0, 1].set(fill).at[1, 3, 2].set(fill)

    def loss(query, learned):
        return jnp.sum(attend(query, key, value, mask=masks.dense(allowed), bias=biases.made(name, learned)) * upstream)

    return quick(jax.grad(loss, (0, 1)))(query, biases.LEARNED)


@pytest.mark.full
@pytest.mark.parametrize("implementation", ["reference", "blockwise", "xla"])
@pytest.mark.parametrize("name", COMBINES_WITH_QUERIES)
@pytest.mark.parametrize("fill", first([np.nan, np.inf], np.nan))
def test_empty_queries_do_not_reach_learned_tables(implementation, name, fill):
    """The gradients of the tables are to the bit those of clean queries."""
    attend = functools.partial(functional.attention, implementation=implementation)
    dirty, clean = (slopes_of_tables(attend, name, x) for x in (fill, 1.0))
    for got, want in zip(jax.tree.leaves(dirty), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", FEW_BIASES)
def test_take_heads(name):
    """The tile of some heads and of their queries is that part of the tile of all heads."""
    query, index = arrays()[0].swapaxes(1, 2), (jnp.arange(T), jnp.arange(S))
    bias = biases.made(name, biases.LEARNED) + functional.with_sinks(*arrays()[1:3], jnp.arange(4.0))[3]
    whole = bias.tile(query, *index)
    np.testing.assert_allclose(bias.take_heads(1, 2).tile(query[:, 1:3], *index), whole[:, 1:3], atol=5e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", ["alibi", "t5", "relative keys", "relative keys by head", "transformer-xl", "sum"])
@pytest.mark.parametrize("sinks", [False, True])
def test_queries_and_keys_at_positions_of_their_own(name, sinks):
    """Some rows and columns of the whole result, where each example has chosen its own, in any order."""
    query, key, value, _ = arrays()
    bias = biases.made(name, biases.LEARNED)
    rows = np.array([[4, 0], [2, 3]])
    columns = np.array([[0, 5, 2], [3, 4, 0]])
    examples = np.arange(2)[:, None]
    query, key, value = query[:2], key[:2], value[:2]
    shown = np.zeros((2, T, S), bool)
    shown[examples[..., None], rows[..., None], columns[:, None]] = True
    mask = masks.causal(3)
    logits = jnp.arange(4.0)

    def attend(query, key, value, mask, bias, **options):
        if sinks:
            key, value, mask, bias = functional.with_sinks(key, value, logits, mask=mask, bias=bias)
            if options:
                options["key_positions"] = np.pad(options["key_positions"], ((0, 0), (0, 1)))
        return functional.attention(query, key, value, mask=mask, bias=bias, **options)

    whole = quick(attend)(query, key, value, mask & masks.dense(shown), bias)
    some = functools.partial(attend, query_positions=rows, key_positions=columns)
    got = quick(some)(query[examples, rows], key[examples, columns], value[examples, columns], mask, bias)
    np.testing.assert_allclose(got, np.asarray(whole)[examples, rows], atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["alibi", "relative keys", "transformer-xl", "sum"])
def test_keys_of_which_several_have_one_position(name):
    """Each of two lanes has the bias of its position, as if it were alone."""
    query, key, value, _ = arrays()
    bias = biases.made(name, biases.LEARNED)
    rows = np.tile(np.arange(T), (B, 1))
    positions = {"query_positions": rows, "key_positions": np.arange(S)[None]}
    expected = quick(functools.partial(functional.attention, **positions))(query, key, value, bias=bias)
    positions["key_positions"] = np.arange(2 * S)[None] // 2
    twice = [jnp.repeat(x, 2, axis=1) for x in (key, value)]
    for lane in range(2):
        mask = masks.dense(np.arange(2 * S)[None] % 2 == lane)
        attend = quick(functools.partial(functional.attention, **positions))
        got = attend(query, *twice, mask=mask, bias=Repeated(bias, 2))
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_bias_with_arrays_of_examples_has_one_order_of_positions():
    """Examples at positions of their own would read each other's arrays."""

    class Own(functional.Bias):
        def tile(self, query, query_index, key_index):
            return jnp.zeros((2, 1, query_index.shape[0], key_index.shape[0]))

    query, positions = jnp.zeros((2, 3, 1, 4)), np.array([[0], [1]])
    with pytest.raises(ValueError, match="Own has entries for 2 examples, whose positions differ"):
        functional.attention(query[:, :1], query, query, bias=Own(), query_positions=positions)
    functional.attention(query[:, :1], query, query, bias=Own(), query_positions=positions[1])


@pytest.mark.parametrize("name", FEW_BIASES)
def test_all_queries_have_the_bias_of_each_row_by_itself(name):
    bias, query = biases.made(name, biases.LEARNED), arrays()[0]
    whole, by_row = (dense_bias(bias, query, S, 0.5, rows=rows) for rows in (None, jnp.arange(T)))
    np.testing.assert_allclose(whole, by_row, atol=1e-5)
    none = query[:, :0]
    assert dense_bias(bias, none, S, 0.5).shape == dense_bias(bias, none, S, 0.5, rows=jnp.arange(0)).shape


def test_transformer_xl_projects_each_distance_once():
    """Not once for each query: at T = S = 32, 63 vectors and not 1,024."""
    length, dim = 32, 64
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, length, 2, 4), (dim, 2, 4), (2, 4))]

    def bias(query, kernel, vector, rows=None):
        _, bias = functional.transformer_xl(query, kernel, content=vector, position=vector)
        return dense_bias(bias, query, length, 0.5, rows=rows)

    by_row = functools.partial(bias, rows=jnp.arange(length))
    once, often = (jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"] for f in (bias, by_row))
    assert once < often / 5


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_a_bias_and_an_array_add_up(implementation):
    query, key, value, _ = arrays()
    num_heads = query.shape[2]
    alibi = functional.alibi(num_heads)
    array = jnp.asarray(np.random.default_rng(4).standard_normal((num_heads, T, S)), jnp.float32)
    attend = functools.partial(functional.attention, query, key, value, implementation=implementation)
    for other in (array, array[0], array[:, :, :1], jnp.float32(2), np.asarray(array)):
        whole = jnp.broadcast_to(jnp.asarray(other), (1, num_heads, T, S))
        expected = attend(bias=dense_bias(alibi, query, S, 1.0) + whole)
        for total in (alibi + other, other + alibi):
            np.testing.assert_allclose(attend(bias=total), expected, atol=1e-5)
    slope = jax.grad(lambda x: attend(bias=alibi + x).sum())(array[0])
    assert slope.shape == (T, S)
