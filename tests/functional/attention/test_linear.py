"""Linear attention: its three forms compute one sum over pairs."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from tests.modules.small import quick
from tests.selection import first

linear_attention = quick(functional.linear_attention, static_argnames=("causal", "chunk", "feature_map"))
DRAW = np.random.default_rng(6)
B, T, N, H, J = 2, 11, 3, 4, 5
QUERY, KEY, VALUE = (DRAW.standard_normal((B, T, N, dim)) for dim in (H, H, J))
ARRAYS = [np.float32(x) for x in (QUERY, KEY, VALUE)]
VALID = np.arange(T) < np.array([[T], [6]])
GIVEN = jax.device_put(VALID)
DIRTY = [ARRAYS[0], *(np.where(VALID[..., None, None], x, np.float32(np.nan)) for x in ARRAYS[1:])]


def phi(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def expected(allowed):
    weights = np.einsum("btnh,bsnh->bnts", phi(QUERY), phi(KEY)) * allowed
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bnts,bsnj->btnj", weights / np.where(total == 0, 1, total), VALUE)


def test_parallel():
    np.testing.assert_allclose(linear_attention(*ARRAYS), expected(1.0), atol=1e-5)


def test_padding_is_inert():
    want = expected(VALID[:, None, None])
    np.testing.assert_allclose(linear_attention(*DIRTY, valid=GIVEN), want, atol=1e-5)
    empty = linear_attention(*ARRAYS, valid=np.zeros((B, T), bool))
    assert not np.asarray(empty).any()


@pytest.mark.parametrize("causal", [False, True])
def test_padding_has_no_gradient(causal):
    """The contents of padding reach no gradient either."""
    loss = lambda *x: functional.linear_attention(*x, causal=causal, valid=GIVEN).sum()
    slopes = quick(jax.grad(loss, (0, 1, 2)))
    chex.assert_trees_all_equal(slopes(*DIRTY), slopes(*ARRAYS))


@pytest.mark.parametrize("chunk", first([1, 4, 11, 64], 4))
def test_causal(chunk):
    got = linear_attention(*ARRAYS, causal=True, chunk=chunk)
    np.testing.assert_allclose(got, expected(np.tri(T)), atol=1e-5)


@pytest.mark.full
def test_causal_gradients_do_not_depend_on_the_chunk():
    loss = lambda chunk: lambda *x: jnp.sum(functional.linear_attention(*x, causal=True, chunk=chunk) ** 2)
    slopes = [quick(jax.grad(loss(chunk), (0, 1, 2)))(*ARRAYS) for chunk in (3, T)]
    chex.assert_trees_all_close(*slopes, rtol=0, atol=2e-4)


def test_steps_are_the_rows_of_the_causal_form():
    """The recurrent form, as a scan, which makes a Transformer an RNN."""

    def step(state, inputs):
        output, state = functional.linear_attention_step(*inputs, state)
        return state, output

    run = quick(lambda inputs: jax.lax.scan(step, functional.linear_attention_start(B, N, H, J), inputs))
    _, rows = run(tuple(np.moveaxis(x, 1, 0) for x in ARRAYS))
    np.testing.assert_allclose(np.moveaxis(np.asarray(rows), 0, 1), expected(np.tri(T)), atol=1e-5)


@pytest.mark.full
def test_products_of_small_features():
    """exp(-50 - 55) is 0 in float32; the quotient and its gradient still equal those in float64, in all forms."""
    draw = np.random.default_rng(3)
    query, key, value = (draw.normal(size=(1, 4, 1, 3)) - shift for shift in (50.0, 55.0, 0.0))
    weights = np.einsum("btnh,bsnh->bnts", np.exp(query), np.exp(key))
    mean = lambda weights: np.einsum("bnts,bsnj->btnj", weights / weights.sum(-1, keepdims=True), value)
    arrays = [jnp.asarray(x, jnp.float32) for x in (query, key, value)]

    def stepped(*arrays):
        step = lambda state, inputs: functional.linear_attention_step(*inputs, state)[::-1]
        rows = tuple(jnp.moveaxis(x, 1, 0) for x in arrays)
        return jnp.moveaxis(jax.lax.scan(step, functional.linear_attention_start(1, 1, 3, 3), rows)[1], 0, 1)

    causal = functools.partial(functional.linear_attention, causal=True)
    forms = [(functional.linear_attention, 1.0), (causal, np.tri(4)), (functools.partial(causal, chunk=3), np.tri(4))]
    for form, allowed in [*forms, (stepped, np.tri(4))]:
        np.testing.assert_allclose(form(*arrays), mean(weights * allowed), rtol=1e-4, atol=1e-4)
        slopes = quick(jax.grad(lambda *x, form=form: (form(*x) ** 2).sum(), (0, 1, 2)))(*arrays)
        # The features are exponentials here, so a shift of all elements changes nothing.
        near = [
            jnp.asarray(x + shift, jnp.float32) for x, shift in zip((query, key, value), (46.0, 50.0, 0.0), strict=True)
        ]
        expected = quick(jax.grad(lambda *x, form=form: (form(*x) ** 2).sum(), (0, 1, 2)))(*near)
        chex.assert_trees_all_close(slopes, expected, rtol=1e-3, atol=1e-4)


def test_features_that_are_zero_in_float32():
    """A query whose features all are, or those of all its keys, gets 0 instead of NaN."""
    far, near, value = (np.full((1, 2, 1, 2), x, np.float32) for x in (-200, 0, 1))
    for query, key in ((far, near), (near, far)):
        assert not np.asarray(linear_attention(query, key, value)).any()


def test_another_feature_map():
    square = lambda x: jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)], -1)
    got = linear_attention(*ARRAYS, feature_map=square)
    q, k = (np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], -1) for x in (QUERY, KEY))
    weights = np.einsum("btnh,bsnh->bnts", q, k)
    want = np.einsum("bnts,bsnj->btnj", weights / weights.sum(-1, keepdims=True), VALUE)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_cost_grows_with_the_length_not_its_square():
    """By the compiler's count of operations, twice the length is twice the work."""

    def flops(length):
        inputs = [jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)] * 3
        return jax.jit(functional.linear_attention).lower(*inputs).compile().cost_analysis()["flops"]

    assert flops(2048) == pytest.approx(2 * flops(1024), rel=0.05)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kept", [(slice(None), slice(0)), (slice(0), slice(None))], ids=["positions", "sequences"])
def test_empty_inputs_give_empty_outputs(kept, causal):
    none = [x[kept] for x in ARRAYS]
    assert linear_attention(*none, causal=causal).shape == none[2].shape


@pytest.mark.full
def test_sums_are_float32_in_a_program_of_64_bits():
    with jax.enable_x64(True):
        state = functional.linear_attention_start(1, 2, features=4, value_dim=3)
        x = jnp.ones((1, 3, 2, 4), jnp.float32)
        causal = functional.linear_attention(x, x, x, causal=True)  # under strict promotion
    assert {leaf.dtype for leaf in (*state, causal)} == {jnp.dtype("float32")}


@pytest.mark.full
def test_features_are_positive_and_computed_in_float32():
    """exp(x) below 0, also where elu(x) + 1 rounds to 0; narrow inputs lose nothing in the feature map."""
    x = jnp.array([-18.0, -8.0, 0.0, 2.0])
    features, slope = functional.elu_plus_one(x), jax.grad(lambda x: functional.elu_plus_one(x).sum())(x)
    np.testing.assert_allclose(features, np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))), rtol=1e-6)
    np.testing.assert_allclose(slope, np.where(x > 0, 1, np.exp(np.minimum(x, 0))), rtol=1e-6)
    shape, draw = (1, 3, 1, 2), np.random.default_rng(0)
    query, key, value = (jnp.asarray(draw.normal(size=shape) - shift, jnp.bfloat16) for shift in (7.0, 7.0, 0.0))
    wide = functional.linear_attention(*(x.astype(jnp.float32) for x in (query, key, value)))
    found = functional.linear_attention(query, key, value)
    np.testing.assert_allclose(found.astype(jnp.float32), wide, atol=0.02)


def test_a_symbolic_length():
    causal = functools.partial(functional.linear_attention, causal=True, chunk=4)
    (length,) = jax.export.symbolic_shape("t")
    shapes = [jax.ShapeDtypeStruct((B, length, *x.shape[2:]), jnp.float32) for x in ARRAYS]
    program = jax.export.export(quick(causal))(*shapes)
    np.testing.assert_allclose(program.call(*ARRAYS), linear_attention(*ARRAYS, causal=True, chunk=4), atol=1e-6)
