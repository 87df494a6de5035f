"""Weights of chosen heads and rows; entropy and alignments, computed some rows at a time in little memory."""

import functools
import importlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.conformance import oracle
from tests.contracts.attention import CASES, VALID, AttentionContract, arrays
from tests.modules.small import quick
from tests.selection import first


@pytest.fixture(params=first([1, 2, 128], 2))
def rows(request, monkeypatch):
    monkeypatch.setattr(importlib.import_module("jaxformer.functional.attention.weights"), "ROWS", request.param)


def check_statistics(query, key, options):
    """Entropy, alignments and statistics are those of all weights, computed in float64."""

    @quick
    def compute(query, key):
        functions = functional.attention_weights, functional.attention_entropy, functional.attention_statistics
        best = functional.top_alignments(query, key, 3, **options)
        return *(f(query, key, **options) for f in functions), best

    weights, got, found, (best, index) = compute(query, key)
    weights = np.asarray(weights, np.float64)
    parts = weights
    if "sinks" in options:
        parts = np.concatenate([weights, np.maximum(1 - weights.sum(-1, keepdims=True), 0)], -1)
    entropy = -np.where(parts > 0, parts * np.log(np.where(parts > 0, parts, 1)), 0).sum(-1)
    atol = 1e-5 if "sinks" in options else 2e-6
    np.testing.assert_allclose(got, entropy, atol=atol)
    np.testing.assert_allclose(best, -np.sort(-weights, -1)[..., :3], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(weights, np.asarray(index), -1), best, atol=1e-6)
    np.testing.assert_allclose(found.entropy, entropy, atol=atol)
    np.testing.assert_allclose(found.top_weight, weights.max(-1), atol=1e-6)
    np.testing.assert_allclose(found.slope, (weights * (1 - weights)).max(-1), atol=1e-6)
    np.testing.assert_allclose(found.variance, logit_variance(query, key, **options), rtol=1e-4, atol=1e-6)
    return weights


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    first(
        [name for name, case in CASES.items() if "dropout" not in case[2]],
        *("grouped", "one head", "mask [B, N, T, S]", "causal and padding"),
    ),
)
@pytest.mark.usefixtures("rows")
def test_entropy_and_alignments_are_those_of_all_weights(name):
    (query, key, _, _), ours, _ = AttentionContract.request(name)
    check_statistics(query, key, ours)


SINKS = np.array([-1.0, 0.5, 2.0, 30.0], np.float32)
PLACES = {"query_positions": np.array([[4, 3, 2, 1, 0], [0, 2, 4, 6, 8]]), "key_positions": np.arange(7)[::-1]}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"sinks": SINKS}, marks=pytest.mark.full),
        pytest.param(PLACES, marks=pytest.mark.full),
        {"sinks": SINKS, **PLACES},
    ],
    ids=["sinks", "places", "both"],
)
@pytest.mark.usefixtures("rows")
def test_sinks_and_positions_count_as_in_all_weights(given):
    """The entropy is of keys and sink; one that takes all weight, and a row without keys, have none."""
    query, key, _, _ = arrays()
    options = {"mask": masks.causal(1), "bias": functional.alibi(4)}
    if "key_positions" in given:
        options = dict(zip(("mask", "bias"), functional.at_positions(query, key, **PLACES, **options), strict=True))
    if "sinks" in given:
        options["sinks"] = jnp.asarray(SINKS)
    weights = check_statistics(query, key, options)
    assert not np.allclose(weights, functional.attention_weights(query, key, mask=masks.causal(1)), atol=1e-2)


def logit_variance(query, key, mask=None, scale=None, **others):
    """The variance of the logits over the keys that a mask allows, query by query in float64."""
    del others
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    shape = query.shape[0], query.shape[2], query.shape[1], key.shape[1]
    allowed = True if mask is None else masks.as_mask(mask).dense(*shape[2:])
    allowed, result = np.broadcast_to(allowed, shape), np.zeros(shape[:3])
    for b, n, t in np.ndindex(shape[:3]):
        keys = key[b, allowed[b, n, t], n * key.shape[2] // shape[1]]
        result[b, n, t] = (keys @ query[b, t, n] * scale).var() if len(keys) else 0
    return result


def test_extremes():
    """The entropy is 0 for one key, log S for equal weights, also if one is of a sink, and 0 without keys."""
    query, key, _, _ = arrays(2, 2)
    one = functional.attention_entropy(query, key, mask=masks.lengths([1, 1]))
    np.testing.assert_allclose(one, 0, atol=1e-6)
    np.testing.assert_allclose(functional.attention_entropy(0 * query, key), np.log(7), rtol=1e-6)
    with_sinks = functional.attention_entropy(0 * query, key, sinks=jnp.zeros(2))
    np.testing.assert_allclose(with_sinks, np.log(8), rtol=1e-6)
    assert not np.asarray(functional.attention_entropy(query, key, mask=masks.lengths([0, 0]))).any()
    assert not any(np.asarray(x).any() for x in functional.attention_statistics(query, key, mask=masks.lengths([0, 0])))


def test_statistics_ignore_keys_that_nothing_sees():
    """Padding may hold anything, NaN included."""
    query, key, _, _ = arrays()
    dirty = jnp.where(jnp.asarray(VALID)[:, :, None, None], key, jnp.nan)
    clean, got = (functional.attention_statistics(query, k, mask=masks.padding(VALID)) for k in (key, dirty))
    chex.assert_trees_all_equal(clean, got)


@pytest.mark.parametrize(
    "function",
    [
        functional.attention_entropy,
        pytest.param(functional.attention_statistics, marks=pytest.mark.full),
        pytest.param(lambda q, k, **m: functional.top_alignments(q, k, 4, **m), marks=pytest.mark.full),
    ],
    ids=["entropy", "statistics", "alignments"],
)
def test_memory_does_not_grow_with_the_square(function):
    """By the compiler's count; at 8,192 positions all weights of two heads would take 512 MiB."""
    shapes = [jax.ShapeDtypeStruct((1, 8192, 2, 16), jnp.float32)] * 2
    compiled = jax.jit(lambda q, k: function(q, k, mask=masks.causal())).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 64 * 2**20


CHOSEN = "grouped", "mask [B, N, T, S]", "padding", "mask [B, N, T, 1]", "one head"


@pytest.mark.full
@pytest.mark.parametrize("name", first(CHOSEN, "grouped", "mask [B, N, T, S]"))
def test_weights_of_chosen_heads_and_rows(name):
    (query, key, _, _), ours, theirs = AttentionContract.request(name)
    _, expected = oracle.attention(query, key, key, **theirs)
    full = functional.attention_weights(query, key, **ours)
    np.testing.assert_allclose(full, expected, atol=1e-6)
    heads = [0] if query.shape[2] == 1 else [3, 1]
    some = functional.attention_weights(query, key, rows=[4, 0], heads=heads, **ours)
    np.testing.assert_allclose(some, expected[:, heads][:, :, [4, 0]], atol=1e-6)


def test_weights_keep_the_contract():
    """An unseen key that holds NaN leaves weights and their gradients alone."""
    query, key, _, _ = arrays()
    dirty = jnp.where(jnp.asarray(VALID)[:, :, None, None], key, jnp.nan)
    total = lambda q, k: jnp.sum(functional.attention_weights(q, k, mask=masks.padding(VALID), rows=[1]) ** 2)
    chex.assert_trees_all_equal(*(quick(jax.grad(total, (0, 1)))(query, k) for k in (key, dirty)))


@pytest.mark.full
def test_empty_queries_do_not_reach_learned_tables():
    """A query that may attend to no key holds NaN, and the gradient of relative keys is that of clean queries."""
    query, key, _, _ = arrays()
    dirty = query.at[1].set(jnp.nan)

    def loss(table, query):
        options = {"mask": masks.lengths([5, 0]), "bias": functional.relative_keys(table)}
        return functional.attention_entropy(query, key, **options).sum()

    slopes = [quick(jax.grad(loss))(jnp.ones((3, query.shape[3])), x) for x in (dirty, query)]
    np.testing.assert_array_equal(*slopes)


@pytest.mark.full
def test_no_queries_and_no_keys():
    """Statistics of no query are empty, and those of no key are 0 as in an empty row."""
    query, key, _, _ = arrays()
    for length, batch in ((0, 2), (5, 2), (5, 0)):
        found = functional.attention_statistics(query[:batch, :length], key[:batch, :0], mask=masks.causal())
        for statistic in (*found, *functional.attention_statistics(query[:batch, :length], key[:batch, :0])):
            assert statistic.shape == (batch, 4, length)
            assert not np.asarray(statistic).any()
    assert functional.attention_statistics(query[:, :0], key).slope.shape == (2, 4, 0)
    assert functional.attention_entropy(query[:, :0], key, mask=masks.causal()).shape == (2, 4, 0)
    assert functional.attention_weights(query[:, :0], key).shape == (2, 4, 0, key.shape[1])


def test_a_symbolic_length():
    query, key, *_ = arrays()
    (length,) = jax.export.symbolic_shape("t")
    shape = jax.ShapeDtypeStruct((query.shape[0], length, *query.shape[2:]), jnp.float32)
    weights = functools.partial(functional.attention_weights, key=key, heads=[1])
    for function in (weights, functools.partial(functional.attention_entropy, key=key)):
        program = jax.export.export(quick(function))(shape)
        for rows in (query, query[:, :1]):
            np.testing.assert_allclose(program.call(rows), quick(function)(rows), atol=1e-6)


QUERY, KEY = jnp.asarray(np.random.default_rng(0).standard_normal((2, 2, 5, 4, 8)), jnp.float32)


def halves(query, key, *, mask=None, factor=0.5):
    """Weights of another kind: a constant times the indices of row and head."""
    batch, rows, heads, _ = query.shape
    grid = factor * np.outer(np.arange(1, heads + 1), np.arange(1, rows + 1))
    return jnp.broadcast_to(jnp.asarray(grid, jnp.float32)[None, ..., None], (batch, heads, rows, key.shape[1]))


def plain(query, key, value, *, mask=None, factor=0.5):
    """An attention function with the weights `halves`."""
    return jnp.einsum("bnts,bsnh->btnh", halves(query, key, mask=mask, factor=factor), value)


OPTIONS = {
    "plain": {},
    "mask": {"mask": masks.causal()},
    "bias": {"bias": functional.alibi(4)},
    "sinks": {"sinks": np.arange(4, dtype=np.float32)},
    "scale": {"scale": 0.1},
}


@pytest.mark.parametrize("name", first(list(OPTIONS), "sinks"))
def test_the_output_for_the_identity_is_the_weights(name):
    """Of 5 and of 19 keys of dim 8, one block and three."""
    options = {name: jnp.asarray(x) if name == "sinks" else x for name, x in OPTIONS[name].items()}
    own = lambda query, key, value: functional.attention(query, key, value, **options)
    keys = jnp.concatenate([KEY, 2 * KEY, -KEY, KEY[:, :4]], 1)
    for key in (KEY, keys):
        found = quick(functools.partial(functional.weights_of, own))(QUERY, key)
        np.testing.assert_allclose(found, functional.attention_weights(QUERY, key, **options), atol=1e-6)


def test_attention_has_its_weights_with_any_implementation():
    """Its implementation and dropout in a partial do not matter to its weights; a scale does."""
    softmax = functional.attention_weights(QUERY, KEY, mask=masks.causal())
    for options in ({}, {"implementation": "blockwise"}, {"implementation": "xla", "dropout": None}):
        attention = functools.partial(functional.attention, **options)
        np.testing.assert_array_equal(functional.weights_of(attention, QUERY, KEY, mask=masks.causal()), softmax)
    scaled = functools.partial(functools.partial(functional.attention, implementation="reference"), scale=2.0)
    expected = functional.attention_weights(QUERY, KEY, scale=2.0)
    np.testing.assert_array_equal(functional.weights_of(scaled, QUERY, KEY), expected)
    expected = functional.attention_weights(QUERY, KEY, scale=1.0)
    np.testing.assert_array_equal(functional.weights_of(scaled, QUERY, KEY, scale=1.0), expected)


def test_rows_and_heads_of_any_function_are_chosen():
    everything = functional.weights_of(plain, QUERY, KEY)
    np.testing.assert_allclose(everything, halves(QUERY, KEY), rtol=1e-6)
    doubled = functools.partial(plain, factor=1.0)
    some = functional.weights_of(doubled, QUERY, KEY, rows=[4, 1], heads=[3, 0, 2])
    np.testing.assert_allclose(some, 2 * everything[:, [3, 0, 2]][:, :, [4, 1]], rtol=1e-6)
    assert functional.weights_of(plain, QUERY, KEY, rows=[]).shape == (2, 4, 0, 5)
    assert functional.weights_of(plain, QUERY[:, :0], KEY).shape == (2, 4, 0, 5)


def test_a_partial_keeps_its_positional_arguments():
    def with_factor(factor, query, key, value):
        return plain(query, key, value, factor=factor)

    bound = functools.partial(functools.partial(with_factor, 1.0))
    np.testing.assert_allclose(functional.weights_of(bound, QUERY, KEY), 2 * halves(QUERY, KEY), rtol=1e-6)


def test_a_function_may_offer_any_number_of_maps():
    """Two maps of four heads, as in differential attention; another shape is refused."""

    def paired(query, key, value, **options):
        return jnp.tanh(plain(query, key, value, **options))

    paired.weights = lambda query, key, **options: halves(query, key, **options)[:, ::2]
    found = functional.weights_of(functools.partial(paired, factor=1.0), QUERY, KEY, heads=[1])
    np.testing.assert_array_equal(found, halves(QUERY, KEY, factor=1.0)[:, 2:3])
    paired.weights = lambda query, key: halves(query, key)[:, 0]
    with pytest.raises(ValueError, match=r"weights must be maps \[B, M, T, S\] .*, got shape \[2, 5, 5\]"):
        functional.weights_of(paired, QUERY, KEY)
