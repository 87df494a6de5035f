"""The contract of attention functions: the library's own keep it, and each planted violation is named."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from examples.own_attention import sigmoid_attention
from jaxformer import functional, masks, modules, sharding
from jaxformer.modules import attention_contract, check_attention
from jaxformer.modules.attention_function import name_of
from tests.selection import first


def linear(query, key, value, *, mask=None):
    """Linear attention of masked keys, pair by pair."""
    allowed = jnp.ones((1, 1, query.shape[1], key.shape[1]), bool)
    allowed = allowed if mask is None else masks.as_mask(mask).dense(*allowed.shape[2:])
    features = (functional.elu_plus_one(x.astype(jnp.float32)) for x in (query, key))
    weights = jnp.where(allowed, jnp.einsum("btnh,bsnh->bnts", *features), 0.0)
    weights /= jnp.maximum(weights.sum(-1, keepdims=True), 1e-6)
    return jnp.einsum("bnts,bsnh->btnh", weights, value.astype(jnp.float32)).astype(query.dtype)


class Differential(nnx.Module):
    """Half as many maps as heads: the difference of two softmaxes (Ye et al. 2024), normalized, with a constant."""

    def __init__(self, rngs, layer):
        self.mix = nnx.Param(0.1 * jax.random.normal(rngs.params(), (4,)))
        self.start = nnx.Variable(0.8 - 0.6 * jnp.exp(-0.3 * jnp.float32(layer)))

    def weights(self, query, key, *, mask=None):
        maps = functional.attention_weights(query, key, mask=mask)
        factor = self.start[...] + self.mix[...].sum()
        return maps[:, ::2] - factor.astype(maps.dtype) * maps[:, 1::2]

    def __call__(self, query, key, value, *, mask=None):
        pairs = value.reshape(*value.shape[:2], value.shape[2] // 2, -1)
        mixed = jnp.einsum("bpts,bsph->btph", self.weights(query, key, mask=mask).astype(value.dtype), pairs)
        return functional.rms_norm(mixed, jnp.ones(mixed.shape[-1])).reshape(query.shape)


OWN = {
    name: functools.partial(functional.attention, implementation=name) for name in ("reference", "blockwise", "xla")
} | {
    "chosen": functional.attention,
    "sharded": sharding.sharded_attention(sharding.mesh("data=8")),
    "sigmoid": sigmoid_attention,
    "linear": linear,
    "differential": modules.per_layer(Differential),
}


@pytest.mark.parametrize("name", first(OWN, "reference"))
def test_own_implementations_keep_the_contract(name):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as in the programs of users
        report = check_attention(OWN[name])
    assert list(report.findings) == list(attention_contract._LAWS)
    offered = {"differential": "2, which it offers", "sharded": "4, which it offers"}
    assert report.findings["maps"] == offered.get(name, "4, its output for the identity")
    assert str(report).splitlines()[0].endswith("keeps the contract of attention functions")


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [{"num_kv_heads": 2}, {"num_kv_heads": 1, "sinks": True}, {"scale": 1.0, "score": functional.soft_cap(3.0)}],
    ids=str,
)
def test_own_attention_keeps_the_contract_with_settings(options):
    assert check_attention(functional.attention, **options)


def rotating(query, key, value, *, mask=None):
    return functional.attention(functional.rotary(query, None), functional.rotary(key, None), value, mask=mask)


def windowed(query, key, value, *, mask):
    return functional.attention(query, key, value, mask=mask & masks.window(3))


def everything(query, key, value, *, mask):
    return functional.attention(query, key, value)


def causal_only(query, key, value, *, mask):
    return functional.attention(query, key, value, mask=masks.causal())


def infinite(query, key, value, *, mask):
    logits = jnp.einsum("btnh,bsnh->bnts", query, key)
    weights = jax.nn.softmax(jnp.where(mask.dense(*logits.shape[2:]), logits, -jnp.inf))
    return jnp.einsum("bnts,bsnh->btnh", weights, value)


def repaired(query, key, value, *, mask):
    """The result is finite, but not the gradient of the softmax."""
    y = infinite(query, key, value, mask=mask)
    return jnp.where(jnp.isnan(y), 0.0, y)


def rooted(query, key, value, *, mask):
    return functional.attention(query, key, value, mask=mask) + jnp.sqrt(jnp.square(query - query))


def upcasting(query, key, value, *, mask):
    arrays = (x.astype(jnp.float32) for x in (query, key, value))
    return functional.attention(*arrays, mask=mask)


def coarse(query, key, value, *, mask):
    """It sums many values of one sign in bfloat16."""
    y = functional.attention(query, key, value, mask=mask)
    return ((y + jnp.asarray(100, y.dtype)) - jnp.asarray(100, y.dtype)).astype(query.dtype)


def without_mask(query, key, value):
    return functional.attention(query, key, value)


def deaf(query, key, value, *, mask=None, bias=None):
    return functional.attention(query, key, value, mask=mask)


def transposed(query, key, value, *, mask):
    return functional.attention(query, key, value, mask=mask).swapaxes(1, 2)


def square(query, key, value, *, mask):
    return functional.attention(query, key[:, : query.shape[1]], value[:, : query.shape[1]], mask=mask)


def branching(query, key, value, *, mask):
    return functional.attention(query, key, value if query.sum() > 0 else -value, mask=mask)


def leaking(query, key, value, *, mask):
    """Rows of a batch are mixed."""
    return functional.attention(query - query.mean(0, keepdims=True), key, value, mask=mask)


class Halved(nnx.Module):
    """The gradient of its parameter is not finite where this is 0."""

    def __init__(self):
        self.gate = nnx.Param(jnp.zeros(()))

    def __call__(self, query, key, value, *, mask):
        gate = jnp.sqrt(self.gate[...] - jax.lax.stop_gradient(self.gate[...]))
        return (1 + gate).astype(query.dtype) * functional.attention(query, key, value, mask=mask)


class Misdrawn:
    """It offers maps in which a masked key has weight."""

    def __call__(self, query, key, value, *, mask):
        return functional.attention(query, key, value, mask=mask)

    def weights(self, query, key, *, mask):
        return functional.attention_weights(query, key)


BROKEN = {
    without_mask: ("arguments", "TypeError: this layer has a mask, which the attention function without_mask does not"),
    deaf: ("arguments", "it takes 'bias', but this changes nothing; use it, or do not take it"),
    branching: ("arguments", "TracerBoolConversionError: Attempted boolean conversion of traced array"),
    transposed: ("arguments", r"ValueError: an attention function must return an array \[B, T, N, H\]"),
    square: ("shape", "ValueError: mask covers"),
    everything: ("masks", "a key that the mask hides from all queries changes the result by"),
    causal_only: ("masks", "a key that the mask hides from all queries changes the result by"),
    infinite: ("masks", "a query that may see no key, as in a row of padding, gets NaN; give it zeros"),
    Misdrawn(): ("maps", "a masked key has weight: its map differs from 0 by"),
    upcasting: ("bfloat16", r"its result for bfloat16 arrays is float32.*end with .astype\(query.dtype\)"),
    coarse: ("bfloat16", "the result in bfloat16 differs from float32 by"),
    leaking: ("vmap and jit", "the rows of a batch, one by one by jax.vmap, differ by"),
    repaired: ("gradients", "the gradient of the values is not finite"),
    rooted: ("gradients", "the gradient of the queries is not finite"),
    Halved(): ("gradients", "the gradient of the parameter gate is not finite"),
    rotating: ("cached steps", "row 6 of the attention function rotating differs by"),
    windowed: ("cached steps", "row 6 of the attention function windowed differs by"),
}


QUICK = (without_mask, deaf, branching, transposed, square, everything, infinite)


@pytest.mark.parametrize("attention", first(BROKEN, *QUICK), ids=name_of)
def test_a_broken_law_is_named(attention):
    law, message = BROKEN[attention]
    expected = f"the attention function {name_of(attention)} breaks the law of {law}: {message}"
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match=expected) as error,
    ):
        check_attention(attention)
    assert "\n" not in str(error.value)
