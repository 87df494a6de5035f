"""Position schemes of self-attention are the functions of the same name, in whole sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, masks, modules
from tests.modules.small import built, normal, quick

D, N, H = 8, 2, 4
CAUSAL = masks.causal()


def make_attention(scheme, rngs):
    made = {
        "none": lambda: None,
        "rotary": lambda: modules.positions.Rotary(
            base=50.0, scaling=functional.linear_scaling(2.0), pairs="neighbors"
        ),
        "alibi": lambda: modules.positions.Alibi(N),
        "relative_keys": lambda: modules.positions.RelativeKeys(H, 2, rngs=rngs),
        "transformer_xl": lambda: modules.positions.TransformerXL(D, N, H, rngs=rngs),
    }[scheme]()
    return modules.SelfAttention(D, N, positions=made, rngs=rngs)


def expected(scheme, params, query, key, value):
    bias, own = None, params.get("positions", {})
    if scheme == "rotary":
        options = {"base": 50.0, "scaling": functional.linear_scaling(2.0), "pairs": "neighbors"}
        query, key = (functional.rotary(x, jnp.arange(x.shape[1]), **options) for x in (query, key))
    if scheme == "alibi":
        bias = functional.alibi(N)
    if scheme == "relative_keys":
        bias = functional.relative_keys(own["table"])
    if scheme == "transformer_xl":
        query, bias = functional.transformer_xl(query, own["kernel"], own["content"], own["position"])
    return functional.attention(query, key, value, mask=CAUSAL, bias=bias)


@pytest.mark.parametrize("scheme", ["none", "rotary", "alibi", "relative_keys", "transformer_xl"])
def test_schemes_are_their_functions(scheme):
    net, params = built(lambda rngs: make_attention(scheme, rngs))
    x = normal(2, 6, D)
    mixed = quick(lambda params: expected(scheme, params, *net.net.bind(params).project(x)))(params)
    output = np.einsum("btnh,nhd->btd", mixed, params["output"]["kernel"])
    np.testing.assert_allclose(net.apply(params, x, mask=CAUSAL), output, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["rotary", "alibi", "relative_keys", "transformer_xl"])
def test_positions_may_be_given(scheme):
    """Padding on the left changes nothing, if positions begin at the first real token; without them it does."""
    net, params = built(lambda rngs: make_attention(scheme, rngs))
    x = normal(2, 6, D)
    valid = np.array([[0, 0, 1, 1, 1, 1], [1] * 6], bool)
    positions = jnp.asarray(np.maximum(np.cumsum(valid, 1) - 1, 0))
    padded = net.apply(params, x, mask=CAUSAL & masks.padding(valid), positions=positions)
    np.testing.assert_allclose(padded[0, 2:], net.apply(params, x[:1, 2:], mask=CAUSAL)[0], atol=1e-5)
    np.testing.assert_allclose(padded[1], net.apply(params, x, mask=CAUSAL)[1], atol=1e-5)
    moved = net.apply(params, x, mask=CAUSAL, positions=positions * 2)
    assert not np.allclose(moved[1], padded[1], atol=1e-3)


def test_captured_weights_know_positions():
    """The weights of a captured call include its bias, its rotation and its sinks."""

    def make(rngs):
        logits = modules.Logits(scale=0.7, score=functional.soft_cap(3.0), qk_norm=True, sinks=True)
        return modules.SelfAttention(D, N, positions=modules.positions.Alibi(N), logits=logits, rngs=rngs)

    net, params = built(make)
    x = normal(2, 6, D)

    @quick
    def run(params):
        caught = {}
        got = net.net.apply(params, x, mask=CAUSAL, intermediates=caught)
        _, _, value = net.net.bind(params).project(x)
        return got, value, caught["self"].weights(mask=CAUSAL)

    got, value, weights = run(params)
    mixed = np.einsum("bnts,bsnh->btnh", weights, value)
    output = np.einsum("btnh,nhd->btd", mixed, params["output"]["kernel"])
    np.testing.assert_allclose(got, output, atol=1e-5)
    assert (np.asarray(weights.sum(-1)) < 1).all()  # the sinks take the rest


def test_the_kernel_of_transformer_xl_has_the_bound_of_its_heads():
    """Xavier's, also if the heads together are narrower than the model."""
    make = lambda rngs: modules.positions.TransformerXL(64, 2, 8, rngs=rngs).kernel[...]
    largest = np.abs(make(nnx.Rngs(params=0))).max()
    np.testing.assert_allclose(largest, (6 / (64 + 2 * 8)) ** 0.5, rtol=0.01)


def test_t5_table_belongs_to_all_layers():
    net, params = built(lambda rngs: modules.T5Bias(N, num_buckets=6, max_distance=5, bidirectional=True, rngs=rngs))
    assert jax.tree.map(jnp.shape, params) == {"table": (6, N)}
    bias = net.net.bind(params)()
    np.testing.assert_array_equal(
        bias.tile(None, jnp.arange(4), jnp.arange(4)),
        functional.t5_bias(params["table"], max_distance=5).tile(None, jnp.arange(4), jnp.arange(4)),
    )
