"""Biases at given positions, of some heads, beside arrays, and of queries that may attend to no key."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.bias import Repeated, dense_bias
from tests.contracts import biases
from tests.contracts.attention import B, S, T, arrays, with_rows
from tests.modules.small import normal, placed, quick
from tests.selection import first

MADE = {
    "alibi": functional.alibi(4),
    "t5": functional.t5_bias(normal(8, 4, seed=1)),
    "relative": functional.relative_keys(normal(7, 8, seed=1)),
}


FEW_BIASES = first(biases.BIASES, "transformer-xl", "relative keys by head", "sum")
COMBINES_WITH_QUERIES = "relative keys", "relative keys by head", "transformer-xl", "shifted"


def slopes_of_tables(attend, name, fill):
    """Returns the gradients of query and learned arrays, where two queries hold `fill` and may attend to no key."""
    query, key, value, upstream = arrays()
    allowed = np.ones((B, 4, T, S), bool)
    allowed[0, :, 1] = allowed[1, 2, 3] = False
    query = with_rows(query, [(0, 1), (1, 3, 2)], fill)

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
    chex.assert_trees_all_equal(dirty, clean)


@pytest.mark.parametrize("name", FEW_BIASES)
def test_take_heads(name):
    """The tile of some heads and of their queries is that part of the tile of all heads."""
    query, index = np.asarray(arrays()[0]).swapaxes(1, 2), (np.arange(T), np.arange(S))

    def tiles(learned, query, *index):
        bias = biases.made(name, learned)
        return bias.tile(query, *index), bias.take_heads(1, 2).tile(query[:, 1:3], *index)

    whole, some = quick(tiles)(biases.LEARNED, query, *index)
    np.testing.assert_allclose(some, np.asarray(whole)[:, 1:3], atol=5e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", ["alibi", "t5", "relative keys", "relative keys by head", "transformer-xl", "sum"])
def test_queries_and_keys_at_given_positions(name):
    """Chosen rows and columns of the full result, different for each example, in any order."""
    query, key, value, _ = arrays()
    bias = biases.made(name, biases.LEARNED)
    rows = np.array([[4, 0], [2, 3]])
    columns = np.array([[0, 5, 2], [3, 4, 0]])
    examples = np.arange(2)[:, None]
    query, key, value = query[:2], key[:2], value[:2]
    shown = np.zeros((2, T, S), bool)
    shown[examples[..., None], rows[..., None], columns[:, None]] = True
    mask = masks.causal(3)
    whole = quick(functional.attention)(query, key, value, mask=mask & masks.dense(shown), bias=bias)
    some = quick(placed(functional.attention, rows, columns))
    given = query[examples, rows], key[examples, columns], value[examples, columns]
    got = some(*given, mask=mask, bias=bias)
    np.testing.assert_allclose(got, np.asarray(whole)[examples, rows], atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["alibi", "relative keys", "transformer-xl", "sum"])
def test_several_keys_at_one_position(name):
    """Each of two lanes has the bias of its position, as if it were alone."""
    query, key, value, _ = arrays()
    bias = biases.made(name, biases.LEARNED)
    rows = np.tile(np.arange(T), (B, 1))
    expected = quick(placed(functional.attention, rows, np.arange(S)[None]))(query, key, value, bias=bias)
    twice = [jnp.repeat(x, 2, axis=1) for x in (key, value)]
    for lane in range(2):
        mask = masks.dense(np.arange(2 * S)[None] % 2 == lane)
        attend = quick(placed(functional.attention, rows, np.arange(2 * S)[None] // 2))
        got = attend(query, *twice, mask=mask, bias=Repeated(bias, 2))
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_bias_with_arrays_of_examples_has_one_order_of_positions():
    """Examples at different positions would read each other's arrays."""

    class Own(functional.Bias):
        def tile(self, query, query_index, key_index):
            return jnp.zeros((2, 1, query_index.shape[0], key_index.shape[0]))

    query, positions = jnp.zeros((2, 3, 1, 4)), np.array([[0], [1]])
    attend = lambda places: jax.eval_shape(
        lambda x: placed(functional.attention, places)(x[:, :1], x, x, bias=Own()), query
    )
    with pytest.raises(ValueError, match="Own has entries for 2 examples, whose positions differ"):
        attend(positions)
    attend(positions[1])


@pytest.mark.parametrize("name", FEW_BIASES)
def test_the_bias_of_all_queries_equals_that_of_each_row(name):
    query = arrays()[0]

    def both(learned, query):
        bias, rows = biases.made(name, learned), jnp.arange(query.shape[1])
        return dense_bias(bias, query, S, 0.5), dense_bias(bias, query, S, 0.5, rows=rows)

    np.testing.assert_allclose(*quick(both)(biases.LEARNED, query), atol=1e-5)
    whole, by_row = jax.eval_shape(both, biases.LEARNED, np.asarray(query)[:, :0])
    assert whole.shape == by_row.shape


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


@pytest.mark.parametrize("implementation", first(["reference", "blockwise"], "blockwise"))
def test_a_bias_and_an_array_are_summed(implementation):
    query, key, value, _ = arrays()
    num_heads = query.shape[2]
    alibi = functional.alibi(num_heads)
    array = np.random.default_rng(4).standard_normal((num_heads, T, S)).astype(np.float32)
    attend = functools.partial(functional.attention, query, key, value, implementation=implementation)
    attend_to = quick(lambda whole: attend(bias=dense_bias(alibi, query, S, 1.0) + whole))
    in_place = lambda other: [attend(bias=total) for total in (alibi + other, other + alibi)]
    others = (array, array[0], array[:, :, :1], np.float32(2))
    runs = [functools.partial(quick(in_place), other) for other in others]
    for other, run in zip((*others, array), (*runs, quick(lambda: in_place(array))), strict=True):  # of NumPy, too
        expected = attend_to(np.broadcast_to(other, (1, num_heads, T, S)))
        for found in run():
            np.testing.assert_allclose(found, expected, atol=1e-5)
    slope = jax.eval_shape(jax.grad(lambda x: attend(bias=alibi + x).sum()), array[0])
    assert slope.shape == (T, S)


@pytest.mark.parametrize("name", first(MADE, "t5"))
def test_positions_of_a_symbolic_batch(name):
    """One program of a cached step for every batch size, also for 1."""

    def place(query, positions):
        return MADE[name].at_positions(query, positions, np.arange(6)[None]).tile(query, jnp.arange(1), jnp.arange(6))

    (batch,) = jax.export.symbolic_shape("b")
    shapes = jax.ShapeDtypeStruct((batch, 4, 1, 8), jnp.float32), jax.ShapeDtypeStruct((batch, 1), jnp.int32)
    program = jax.export.export(jax.jit(place))(*shapes)
    query, positions = normal(3, 4, 1, 8), jnp.asarray([[0], [5], [2]])
    for size in (1, 3):
        got = np.broadcast_to(program.call(query[:size], positions[:size]), (size, 4, 1, 6))
        for i in range(size):
            np.testing.assert_allclose(
                got[i : i + 1], place(query[i : i + 1], positions[i : i + 1]), rtol=1e-6, atol=1e-6
            )


def test_a_numpy_array_is_a_bias_in_a_traced_function():
    """Its tile has a traced index, which NumPy refused."""
    query, key, value = np.random.default_rng(8).standard_normal((3, 1, 6, 2, 4)).astype(np.float32)
    bias = np.random.default_rng(9).standard_normal((2, 6, 6)).astype(np.float32)
    attend = lambda bias: quick(lambda *x: functional.attention(*x, mask=masks.causal(), bias=bias))(query, key, value)
    np.testing.assert_array_equal(attend(bias), attend(jnp.asarray(bias)))
