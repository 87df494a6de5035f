"""The parts that implementations share: the masked softmax, a scale that is traced, and scores."""

import dataclasses
import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, sharding
from jaxformer.conformance import oracle
from jaxformer.errors import ConfigError
from jaxformer.functional.attention import blockwise, reference
from jaxformer.functional.attention.base import make_request, once
from tests.contracts.attention import S, T, arrays
from tests.modules.small import quick
from tests.selection import first


def test_masked_softmax_of_an_empty_row_has_zero_gradient():
    logits = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mask = jnp.array([[True, False, True], [False, False, False]])
    weights, pull = jax.vjp(lambda x: functional.masked_softmax(x, mask), logits)
    np.testing.assert_allclose(weights, [[1 / (1 + np.e**2), 0, 1 / (1 + np.e**-2)], [0, 0, 0]], rtol=1e-6)
    (slope,) = pull(jnp.array([[1.0, 9.0, 0.0], [1.0, 2.0, jnp.inf]]))
    np.testing.assert_allclose(slope[0, 1], 0)
    np.testing.assert_array_equal(slope[1], 0)


@pytest.mark.full
@pytest.mark.parametrize("implementation", ["reference", "blockwise", "xla"])
def test_a_traced_scale(implementation):
    """A traced scale may be learned; a concrete array is a number."""
    query, key, value, _ = arrays()
    options = {"mask": masks.causal(1), "implementation": implementation}

    def loss(query, scale):
        return jnp.sin(functional.attention(query, key, value, scale=scale, **options)).sum()

    by_query, by_scale = jax.jit(jax.grad(loss, (0, 1)))(query, jnp.float32(0.3))
    np.testing.assert_allclose(by_query, jax.grad(loss)(query, 0.3), atol=1e-5)
    np.testing.assert_allclose(by_query, jax.grad(loss)(query, jnp.float32(0.3)), atol=1e-5)
    np.testing.assert_allclose(by_scale, (loss(query, 0.31) - loss(query, 0.29)) / 0.02, rtol=2e-2)


@pytest.mark.parametrize("implementation", ["reference", "blockwise", "xla", "ring"])
@pytest.mark.parametrize("fill", first([np.nan, np.inf], np.nan))
@pytest.mark.full
def test_a_traced_scale_and_empty_queries(implementation, fill):
    """Whatever a query that may attend to no key holds, the outputs and all gradients are those of finite queries."""
    query, key, value, _ = arrays()
    allowed = np.asarray(masks.causal(1).dense(T, S)).copy()
    allowed[..., 1, :] = False
    attend = functools.partial(functional.attention, implementation=implementation)
    if implementation == "ring":
        attend = sharding.ring_attention(sharding.mesh("context=2", jax.devices()[:2]), "context")

    def loss(query, scale):
        output = attend(query, key, value, mask=masks.dense(allowed), scale=scale)
        return jnp.sin(output).sum(), output

    run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    expected = run(query, jnp.float32(0.3))
    np.testing.assert_allclose(expected[1], loss(query, 0.3)[1], atol=1e-6)
    got = run(query.at[:, 1].set(fill), jnp.float32(0.3))
    chex.assert_trees_all_equal(got, expected)


def test_equal_caps_share_a_program():
    assert functional.soft_cap(3.0) == functional.soft_cap(3.0)
    assert hash(functional.soft_cap(3.0)) == hash(functional.soft_cap(3.0))


def test_a_guard_lets_the_gradient_pass_once():
    """Under every transformation, also beside integers; its gradient does not pass, and JAX refuses forward mode."""
    square = lambda x: (once({"x": x, "index": jnp.arange(3)}, "use another")["x"] ** 2).sum()
    scanned = lambda x: jax.lax.scan(jax.checkpoint(lambda c, _: (c + square(x) / 2, None)), 0.0, None, 2)[0]
    mapped, x = lambda x: jax.vmap(square)(x[None])[0], jnp.arange(3.0)
    for slope in (jax.grad(square), jax.jit(jax.grad(scanned)), lambda x: jax.vmap(jax.grad(mapped))(x[None])[0]):
        np.testing.assert_array_equal(slope(x), 2 * x)
    for second in (jax.jacfwd, jax.jacrev):
        for f in (square, scanned, mapped):
            with pytest.raises(ValueError, match=r"^use another"):
                second(jax.jit(jax.grad(f)))(x)
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        jax.jvp(jax.jit(square), (x,), (x,))


def signed_root(logits):
    """A score whose derivative is infinite at 0."""
    return jnp.sign(logits) * jnp.sqrt(jnp.abs(logits))


@pytest.mark.full
@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.parametrize("mask", [masks.causal(1), masks.lengths([5, 0]), None], ids=["causal", "lengths", "no mask"])
def test_a_score_with_an_infinite_slope_at_zero(implementation, mask):
    """Keys that a query may not attend to, and the padding of blocks, add nothing to the gradients."""
    *inputs, upstream = arrays()
    options = {} if mask is None else {"allowed": np.asarray(mask.dense(T, S))}
    # d sqrt(x) / dx is infinite at 0 only
    theirs = lambda x: np.sign(x) * np.sqrt(abs(x)), lambda x: 0.5 / np.sqrt(abs(x))
    request = make_request(*inputs, mask=mask, score=signed_root)

    def attend(query, key, value):
        changed = dataclasses.replace(request, query=query, key=key, value=value)
        if implementation == "reference":
            return reference.attention(changed)
        return blockwise.attention(changed, query_block=2, key_block=4)

    output, pull = jax.vjp(attend, *inputs)
    np.testing.assert_allclose(output, oracle.attention(*inputs, score=theirs, **options)[0], atol=3e-6)
    expected = oracle.gradients(*inputs, upstream, score=theirs, **options)
    chex.assert_trees_all_close(pull(upstream), expected[:3], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "case",
    first(itertools.product([1, 2, 3, 4], ["reference", "blockwise"]), (3, "reference"), (1, "blockwise")),
    ids=str,
)
def test_a_bias_broadcasts(case):
    """Leading dimensions may be left out, as in NumPy: ``[N, T, S]`` is one for each head."""
    (dims, implementation), (query, key, value, _) = case, arrays()
    bias = jnp.asarray(np.random.default_rng(4).standard_normal((1, query.shape[2], T, S)), jnp.float32)
    bias = bias[(0,) * (4 - dims)]
    whole = jnp.broadcast_to(bias, (query.shape[0], query.shape[2], T, S))

    @quick
    def results(bias):
        output = functional.attention(query, key, value, bias=bias, implementation=implementation)
        return output, functional.attention_weights(query, key, bias=bias)

    (found, weights), (expected, expected_weights) = results(bias), results(whole)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-6)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_an_infinite_sink_takes_all_weight(implementation):
    query, key, value, _ = arrays()

    def loss(value, sinks):
        return functional.attention(query, key, value, sinks=sinks, implementation=implementation).sum()

    sinks = jnp.full(query.shape[2], jnp.inf)
    result, slopes = quick(jax.value_and_grad(loss, (0, 1)))(value, sinks)
    assert result == 0
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), slopes)


def test_a_bias_of_integers_is_added_by_every_implementation():
    x, bias = jnp.ones((1, 3, 2, 4)), jnp.arange(9).reshape(3, 3)
    expected = functional.attention(x, x, x, bias=bias.astype(jnp.float32), implementation="reference")
    for name in ("reference", "blockwise", "xla"):
        np.testing.assert_allclose(functional.attention(x, x, x, bias=bias, implementation=name), expected, atol=1e-6)


def test_sinks_of_an_empty_row_pass_no_infinity():
    """It was multiplied by 0 before it was left out, which `jax_debug_nans` reports."""
    x = jnp.ones((1, 2, 1, 4))
    loss = lambda sinks: functional.attention(
        x, x, x, mask=masks.lengths([0]), sinks=sinks, implementation="blockwise"
    ).sum()
    with jax.debug_nans(True):
        assert jax.grad(loss)(jnp.zeros(1)) == 0


def test_a_score_that_is_learned_is_not_computed_in_blocks():
    """Its gradient would be lost; by default, long sequences use the reference, too."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 300, 1, 4)), jnp.float32)

    def loss(cap, implementation=None):
        score = lambda logits: cap * jnp.tanh(logits / cap)
        return jnp.square(functional.attention(x, x, x, score=score, implementation=implementation)).sum()

    slopes = [quick(jax.grad(functools.partial(loss, implementation=name)))(1.0) for name in (None, "reference")]
    np.testing.assert_allclose(*slopes, rtol=1e-6)
    with pytest.raises(ValueError, match="'blockwise' cannot do this: its score reads traced arrays"):
        jax.grad(functools.partial(loss, implementation="blockwise"))(1.0)
    np.testing.assert_allclose(loss(1.0, "blockwise"), loss(1.0, "reference"), rtol=1e-5)
    ring = sharding.ring_attention(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("context",)), "context")
    with pytest.raises(ConfigError, match="ring attention cannot do this: its score reads traced arrays"):
        jax.grad(lambda cap: ring(x, x, x, score=lambda logits: cap * logits).sum())(1.0)
