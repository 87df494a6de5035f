"""The mixture-of-experts layer in the place of a feed-forward network, alone, in a block, in a stack, on a mesh."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import axes, functional, masks, modules, sharding
from jaxformer.functional.cache import empty_cache
from tests.modules.small import built, normal, quick

D, F, E = 8, 12, 4


def layer(**options):
    return built(lambda rngs: modules.MixtureOfExperts(D, E, F, rngs=rngs, **options))


@pytest.mark.parametrize("gated", [False, True])
def test_agrees_with_the_function(gated):
    """Tokens of one sentence after another: the router's logits, and the kernels."""
    net, params = layer(gated=gated)
    x = normal(2, 5, D)

    @quick
    def by_hand(params):
        routing = functional.route((x @ params["router"]).reshape(10, E), 2)
        experts = functional.Experts(params["up"], params["down"], params.get("gate"))
        return functional.mixture_of_experts(x.reshape(10, D), routing, experts).reshape(x.shape)

    np.testing.assert_allclose(net.apply(params, x), by_hand(params), atol=1e-5)


def test_the_router_has_all_bits_of_float32():
    """By default, a TPU and a GPU round the operands of products of float32; the gradient's products are as exact."""
    net, params = layer()
    x = normal(2, 5, D).astype(jnp.bfloat16)

    loss = lambda params: net.net.apply(params, x).astype(jnp.float32).sum()
    text = str(jax.make_jaxpr(jax.grad(loss))(params))
    products = re.findall(r"\bdot_general\[.*?\n *\] ", text, re.DOTALL)  # those of the experts are of another kind
    assert len(products) >= 2
    assert all("Precision.HIGHEST" in product for product in products)


def test_room_only_in_training_and_by_sentence():
    """With a key an expert is limited, in each sentence by itself; without one nothing is dropped."""
    limited, params = layer(capacity_factor=0.5)
    free, _ = layer()
    x, key = normal(3, 6, D), jax.random.key(0)
    roomy, _ = layer(capacity_factor=float(E))

    @quick
    def run(params):
        calls = ((limited, x, None), (free, x, None), (limited, x, key), (limited, x[1:2], key), (roomy, x, key))
        return [each.net.apply(params, x, key=key) for each, x, key in calls]

    unlimited, expected, tight, alone, enough = map(np.asarray, run(params))
    np.testing.assert_array_equal(unlimited, expected)
    assert not np.allclose(tight, expected, atol=1e-3)
    np.testing.assert_allclose(tight[1:2], alone, atol=1e-6)
    np.testing.assert_allclose(enough, expected, atol=1e-5)


def test_padding_takes_no_room():
    """Whatever stands before the real tokens of a sentence, they get the same."""
    net, params = layer(capacity_factor=0.5)
    valid = jnp.broadcast_to(jnp.arange(6) >= 3, (2, 6))
    found = [net.apply(params, normal(2, 6, D).at[:, :3].mul(x), valid=valid, key=jax.random.key(0)) for x in (1, -9)]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.asarray(found[0][:, 3:]).any()


def moe_block(**options):
    def make(rngs):
        return modules.Block(
            modules.SelfAttention(D, 2, rngs=rngs),
            modules.MixtureOfExperts(D, E, F, rngs=rngs, **options),
            norm=lambda: modules.RMSNorm(D),
        )

    return make


@pytest.mark.full
def test_in_a_stack_the_routing_can_be_collected_and_trained():
    """Captured routings of all layers give the balancing loss, whose gradient reaches every router."""
    net, params = built(lambda rngs: modules.Stack(moe_block(), 3, rngs=rngs))
    x = normal(2, 5, D)

    def loss(params):
        _, intermediates = net.net.bind(params).run(x, mask=masks.causal(), capture=("experts",))
        assert intermediates["experts"].experts.shape == (3, 2, 5, 2)
        return jax.vmap(functional.load_balancing_loss)(intermediates["experts"]).sum()

    value, gradient = jax.value_and_grad(loss)(params)
    assert 2.9 < value < 3 * E
    slopes = np.abs(gradient["layers"]["feed_forward"]["router"]).max((1, 2))
    assert (slopes > 0).all()


@pytest.mark.full
def test_cached_step_equals_the_whole():
    net, params = built(moe_block(capacity_factor=1.0))
    x = normal(2, 4, D)
    whole = net.apply(params, x, mask=masks.causal())
    cache = empty_cache(2, 4, num_kv_heads=2, head_dim=D // 2, dtype=jnp.float32)
    for t in range(4):
        row, cache = net.call(
            modules.Block.step, params, x[:, t : t + 1], cache, None, positions=jnp.full((2, 1, 1), t)
        )
        np.testing.assert_allclose(row[:, 0], whole[:, t], atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("text", ["data=2,expert=4", "fsdp=2,expert=2,tensor=2"])
def test_on_a_mesh_of_experts(text, monkeypatch):
    """Kernels and gathered tokens sharded over experts, sentences over data: the same numbers, forward and gradient."""
    placement = sharding.Placement(sharding.mesh(text))
    net, params = layer(capacity_factor=1.0)
    x, key = normal(4, 6, D), jax.random.key(0)

    def loss(params, x):
        return jnp.sum(jnp.sin(net.net.apply(params, x, key=key)))

    expected = jax.value_and_grad(loss)(params, x)
    seen = []
    spy = lambda x, *names: (seen.append(names), axes.constrain(x, *names))[1]
    monkeypatch.setattr(modules.experts, "constrain", spy)
    where = placement.params(net.net.shapes, net.net.axes)
    placed = jax.device_put(params, where), placement.assemble(x)
    value, gradient = jax.jit(jax.value_and_grad(placement.with_axis_rules(loss)))(*placed)
    assert ("experts", None, None) in seen
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    chex.assert_trees_all_close(gradient, expected[1], rtol=0, atol=1e-5)
    assert where["up"].spec[0] == gradient["up"].sharding.spec[0] == "expert"


def test_gathered_tokens_keep_their_features(monkeypatch):
    """Sharded over fsdp, as a parameter is, they were sent to other devices and every product was summed over them."""
    placement = sharding.Placement(sharding.mesh("fsdp=2,expert=4"))
    net, params = layer(capacity_factor=1.0)
    place, specs = jax.lax.with_sharding_constraint, []
    spy = lambda x, where: (specs.append(tuple(where.spec)), place(x, where))[1]
    monkeypatch.setattr(jax.lax, "with_sharding_constraint", spy)
    run = placement.with_axis_rules(lambda params, x: net.net.apply(params, x, key=jax.random.key(0)))
    jax.eval_shape(run, params, normal(4, 6, D))
    assert specs == [("expert", None, None), ("expert", None, None), ("fsdp", None, None)]


def test_axes_name_the_experts():
    net, _ = layer(gated=True)
    assert {name: names[0] for name, names in net.net.axes.items()} == {
        "router": "model",
        "up": "experts",
        "down": "experts",
        "gate": "experts",
    }


def test_refuses_more_experts_than_there_are():
    with pytest.raises(ValueError, match="between 1 and 4 experts, got 5"):
        layer(num_experts_per_token=5)
