"""Multi-head attention layers against separate matrices and the NumPy oracle."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, masks, modules
from jaxformer.conformance import oracle
from jaxformer.functional.cache import empty_cache
from jaxformer.modules.attention_function import check_partial
from tests.modules.small import built, count, normal, quick

D, N = 8, 4
VALID = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)


def self_attention(num_kv_heads=4, bias=False, **options):
    return built(lambda rngs: modules.SelfAttention(D, N, num_kv_heads=num_kv_heads, bias=bias, rngs=rngs, **options))


def cross_attention(num_kv_heads=4, bias=False, **options):
    return built(lambda rngs: modules.CrossAttention(D, N, num_kv_heads=num_kv_heads, bias=bias, rngs=rngs, **options))


def merge(output, params):
    """Heads through W^O, in NumPy."""
    flat = np.asarray(output).reshape(*output.shape[:2], -1)
    mixed = flat @ np.asarray(params["output"]["kernel"], np.float64).reshape(flat.shape[-1], D)
    return mixed + np.asarray(params["output"].get("bias", 0.0))


@pytest.mark.parametrize(
    ("num_kv_heads", "bias"),
    [pytest.param(4, False, marks=pytest.mark.full), (2, True), pytest.param(1, False, marks=pytest.mark.full)],
)
def test_fused_projection_equals_separate_matrices(num_kv_heads, bias):
    """One matrix product for queries, keys and values: the slices of its kernel are the separate W_Q, W_K, W_V."""
    net, params = self_attention(num_kv_heads, bias)
    x = np.asarray(normal(2, 5, D), np.float64)
    kernel, offset = np.asarray(params["kernel"], np.float64), np.asarray(params.get("bias", np.zeros(1)))
    heads = lambda k, which: x @ kernel[:, k, which] + (offset[k, which] if bias else 0)
    group = N // num_kv_heads
    query = np.stack([heads(n // group, n % group) for n in range(N)], 2)
    key = np.stack([heads(k, -2) for k in range(num_kv_heads)], 2)
    value = np.stack([heads(k, -1) for k in range(num_kv_heads)], 2)
    found = net.call(modules.SelfAttention.project, params, jnp.asarray(x, jnp.float32))
    chex.assert_trees_all_close(found, (query, key, value), rtol=0, atol=1e-5)
    allowed = np.asarray((masks.causal() & masks.padding(VALID)).dense(5, 5))
    expected = merge(oracle.attention(query, key, value, allowed=allowed)[0], params)
    got = net.apply(params, jnp.asarray(x, jnp.float32), mask=masks.causal() & masks.padding(VALID))
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(("num_kv_heads", "bias"), [pytest.param(4, True, marks=pytest.mark.full), (2, False)])
def test_cross_attention_equals_separate_matrices(num_kv_heads, bias):
    net, params = cross_attention(num_kv_heads, bias)
    x, memory = normal(2, 3, D, seed=1), normal(2, 5, D, seed=2)
    both = np.einsum("bsd,dkch->bskch", memory, params["key_value"]) + np.asarray(params.get("key_value_bias", 0.0))
    query = np.einsum("btd,dnh->btnh", x, params["query"]) + np.asarray(params.get("query_bias", 0.0))
    allowed = VALID[:, None, None]
    expected = merge(oracle.attention(query, both[..., 0, :], both[..., 1, :], allowed=allowed)[0], params)
    memory = net.call(modules.CrossAttention.project, params, memory)
    got = net.apply(params, x, memory, mask=masks.padding(VALID))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_parameters():
    """4 D^2 without biases whatever the number of heads; grouped keys are fewer; the kernel draws as Glorot says."""
    assert count(self_attention()[1]) == count(cross_attention()[1]) == 4 * D * D
    assert count(self_attention(bias=True)[1]) == count(cross_attention(bias=True)[1]) == 4 * D * D + 4 * D
    assert count(self_attention(num_kv_heads=1)[1]) == 2 * D * D + 2 * D * D // N
    fresh = built(lambda rngs: modules.SelfAttention(64, 4, rngs=rngs))[0].init(jax.random.key(0))
    limit = np.sqrt(6 / 128)
    for kernel in (fresh["kernel"], fresh["output"]["kernel"]):
        assert limit * 0.99 < np.abs(kernel).max() <= limit
        np.testing.assert_allclose(np.std(kernel), limit / np.sqrt(3), rtol=0.02)


def test_dropout_needs_a_key_and_drops_weights():
    net, params = self_attention(dropout=0.5)
    x = normal(2, 5, D)
    clean = net.apply(params, x)
    one, same, other = (net.apply(params, x, key=jax.random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, clean, atol=1e-3)
    assert not np.allclose(one, other, atol=1e-3)


def test_an_attention_function_receives_dropout_only_if_it_is_used():
    seen = []

    def spy(query, key, value, *, mask, dropout):
        seen.append(None if dropout is None else dropout.rate)
        return functional.attention(query, key, value, mask=mask, dropout=dropout)

    for rate, key in ((0.0, jax.random.key(0)), (0.5, None), (0.5, jax.random.key(0))):
        net, params = self_attention(attention=spy, dropout=rate)
        net.apply(params, normal(2, 5, D), key=key)
    assert seen == [None, None, 0.5]


def flat(query, key, *, mask=None):
    """Weights that are not a softmax: 1 for every allowed pair."""
    lengths = query.shape[1], key.shape[1]
    allowed = jnp.ones((1, 1, *lengths), bool) if mask is None else masks.as_mask(mask).dense(*lengths)
    return jnp.broadcast_to(allowed, (query.shape[0], query.shape[2], *lengths)).astype(jnp.float32)


def adding(query, key, value, *, mask=None, dropout=None):
    return jnp.einsum("bnts,bsnh->btnh", flat(query, key, mask=mask), value)


def captured(attention, *, make=self_attention, x=None, **given):
    """The layer's `CapturedAttention`, and its values and output."""
    net, params = make(attention=attention)
    x, caught = normal(2, 5, D) if x is None else x, {}
    output = net.net.apply(params, x, mask=masks.causal(), intermediates=caught, **given)
    return caught["self"], net.call(modules.SelfAttention.project, params, x)[2], (output, params)


POSITIONS = np.array([[4, 3, 2, 1, 0], [0, 2, 4, 6, 8]])


@pytest.mark.parametrize(
    ("attention", "given"),
    [
        (functional.attention, {}),
        (functools.partial(functional.attention, scale=3.0), {}),
        (adding, {}),  # softmax weights of a layer that adds values up would be wrong
        (adding, {"positions": POSITIONS}),  # mask and bias are computed at the positions before the function sees them
    ],
    ids=["softmax", "partial", "adding", "positions"],
)
def test_captured_weights_rebuild_the_output(attention, given):
    """They have the mask of the call; a mask in its place counts instead of it, and without any no weight is 0."""
    caught, value, (output, params) = captured(attention, **jax.device_put(given))
    weights = caught.weights()
    np.testing.assert_allclose(output, merge(np.einsum("bnts,bsnh->btnh", weights, value), params), atol=1e-5)
    seen = np.triu(np.ones((5, 5), bool)) if given else np.tri(5, dtype=bool)
    np.testing.assert_array_equal(np.asarray(weights[0]) > 0, np.broadcast_to(seen, weights.shape[1:]))
    np.testing.assert_array_equal(caught.weights(rows=[3], heads=[1]), weights[:, 1:2, 3:4])
    assert (np.asarray(caught.weights(mask=masks.window(1))) > 0).sum(-1).max() == 2
    assert (np.asarray(dataclasses.replace(caught, mask=None).weights()) > 0).all()
    with pytest.raises(ValueError, match=r"this is a single layer already: queries have shape \[2, 5, 4, "):
        caught.layer(0)


def test_attention_that_is_not_linear_has_only_the_maps_that_it_offers():
    """Its rows are normalized, as in differential attention, so that its output for the identity says nothing."""

    def normalized(query, key, value, *, mask=None):
        output = adding(query, key, value, mask=mask)
        return output * jax.lax.rsqrt(1e-6 + jnp.square(output).mean(-1, keepdims=True))

    caught, _, _ = captured(normalized)
    with pytest.raises(ValueError, match=r"normalized is not linear in its values, so it has no maps; give it"):
        caught.weights()
    normalized.weights = lambda query, key, *, mask=None: flat(query, key, mask=mask)[:, :1]
    np.testing.assert_array_equal(caught.weights()[0, 0], np.tril(np.ones((5, 5))))


@pytest.mark.parametrize("name", ["mask", "bias", "dropout"])
def test_partials_that_a_layer_would_override_are_refused(name):
    """A layer passes these itself, so those of the partial had no effect; a partial of a partial is one as well."""
    bound = functools.partial(functools.partial(functional.attention, **{name: None}), scale=1.0)
    for make in (self_attention, cross_attention):
        with pytest.raises(ValueError, match=f"a layer passes '{name}' itself.* mask=mask & masks"):
            make(attention=bound)


OWN_SETTINGS = {"scale": 0.5, "score": functional.soft_cap(2.0), "sinks": True}
BOUND_SETTINGS = {"scale": 3.0, "score": jnp.tanh, "sinks": jnp.ones(N)}


@pytest.mark.parametrize("name", OWN_SETTINGS)
def test_partials_of_a_setting_are_refused_if_the_layer_has_it_too(name):
    """The layer's value was used silently; if the layer does not have the setting, that of the partial counts."""
    bound = functools.partial(functional.attention, **{name: BOUND_SETTINGS[name]})
    for make in (self_attention, cross_attention):
        with pytest.raises(ValueError, match=f"this layer passes '{name}' from its own setting.* remove one"):
            make(attention=bound, logits=modules.Logits(**{name: OWN_SETTINGS[name]}))
    others = {other: x for other, x in OWN_SETTINGS.items() if other != name}
    net, params = self_attention(attention=bound, logits=modules.Logits(**others))
    plain = self_attention(logits=modules.Logits(**others))[0]
    x = normal(2, 5, D)
    assert np.abs(net.apply(params, x) - plain.apply(params, x)).max() > 1e-3


def test_a_function_may_combine_masks_itself():
    """The remedy of that message: its window applies in the full pass and in cached steps."""

    def local(query, key, value, *, mask, **kwargs):
        return functional.attention(query, key, value, mask=mask & masks.window(1), **kwargs)

    net, params = self_attention(attention=local)
    x = normal(2, 5, D)
    whole = net.apply(params, x, mask=masks.causal())
    expected = self_attention()[0].apply(params, x, mask=masks.window(1))
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    cache = empty_cache(2, 5, num_kv_heads=N, head_dim=D // N, dtype=jnp.dtype("float32"))
    positions = jnp.tile(jnp.arange(5), (2, 1, 1))
    rows, _ = net.call(modules.SelfAttention.step, params, x, cache, positions)
    np.testing.assert_allclose(rows, whole, atol=1e-5)


def test_an_option_that_a_function_lacks_is_named():
    attention = lambda query, key, value, *, mask=None: value
    net, params = self_attention(attention=attention, positions=modules.positions.Alibi(N))
    with pytest.raises(TypeError, match=r"this layer has a bias, which .*<lambda> does not take"):
        net.apply(params, normal(2, 5, D))


class Sloped(nnx.Module):
    """Softmax attention with a learned cost of distance, which is a parameter."""

    def __init__(self):
        self.slope = nnx.Param(jnp.full(N, 0.5))

    def bias(self, query_positions, key_positions):
        distance = jnp.abs(query_positions[..., :, None] - key_positions[..., None, :])
        return -self.slope[...][:, None, None] * distance[..., None, :, :].astype(jnp.float32)

    def weights(self, query, key, *, mask=None):
        return functional.attention_weights(
            query, key, mask=mask, bias=self.bias(jnp.arange(query.shape[1]), jnp.arange(key.shape[1]))
        )

    def __call__(self, query, key, value, *, mask=None):
        bias = self.bias(jnp.arange(query.shape[1]), jnp.arange(key.shape[1]))
        return functional.attention(query, key, value, mask=mask, bias=bias)


def test_an_attention_module_has_parameters_and_maps():
    """Its parameters are the layer's, change output and weights, and the maps use those of each call."""
    net, params = self_attention(attention=Sloped())
    x = normal(1, 5, D)

    def run(params):
        found = {}
        output = net.net.apply(params, x, mask=masks.causal(), intermediates=found)
        return output, found["self"]

    run, maps = quick(run), quick(lambda captured: captured.weights())
    for slope in (0.5, 2.0):
        params["attention"]["slope"] = jnp.full(N, slope)
        output, captured = run(params)
        value = np.einsum("btd,dkh->btkh", x, params["kernel"][:, :, -1])
        mixed = np.einsum("bnts,bsnj->btnj", maps(captured), value)
        np.testing.assert_allclose(output, merge(mixed, params), atol=1e-5)


@pytest.mark.parametrize(
    "wrap",
    [
        functools.partial,
        lambda module: functools.wraps(module)(lambda *arrays: module(*arrays)),
        lambda module: module.__call__,
    ],
)
def test_a_wrapper_that_would_hide_parameters_is_refused(wrap):
    """Flax does not see a module inside a function or a method, so its parameters would silently stay as they are."""
    with pytest.raises(TypeError, match=r"wraps the module Sloped, .* not be trained; pass the module itself"):
        check_partial(wrap(Sloped()))
