"""The layers of one interface: padding of any content, dependence, and each one's definition; V1: grids."""

import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, modules
from tests.modules.small import built, normal, quick

B, T, D = 2, 6, 8
VALID = jnp.asarray([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], bool)
near = functools.partial(np.testing.assert_allclose, atol=1e-5)


def attention(rngs, **options):
    return modules.SelfAttention(D, 2, rngs=rngs, bias=True, **options)


def linear(rngs, *, causal=False, **options):
    return modules.LinearAttentionLayer(attention(rngs, **options), causal=causal)


LAYERS = {
    "recurrent": lambda rngs: modules.RecurrentLayer(D, cell="gru", bidirectional=True, rngs=rngs),
    "convolution": lambda rngs: modules.Convolution(D, D, rngs=rngs),
    "stack": lambda rngs: modules.ConvolutionStack(D, 2, growth=3, rngs=rngs),
    "attention": lambda rngs: modules.AttentionLayer(attention(rngs)),
    "window": lambda rngs: modules.AttentionLayer(attention(rngs), mask=masks.window(1, 1)),
    "linear": linear,
}
CAUSAL = {
    "recurrent": lambda rngs: modules.RecurrentLayer(D, cell="gru", rngs=rngs),
    "convolution": lambda rngs: modules.Convolution(D, D, causal=True, rngs=rngs),
    "stack": lambda rngs: modules.ConvolutionStack(D, 2, growth=3, causal=True, rngs=rngs),
    "attention": lambda rngs: modules.AttentionLayer(attention(rngs), mask=masks.causal()),
    "window": lambda rngs: modules.AttentionLayer(attention(rngs), mask=masks.window(1)),
    "linear": functools.partial(linear, causal=True),
}


@pytest.mark.full
@pytest.mark.parametrize("name", LAYERS)
def test_padding_of_any_content_changes_no_bit(name):
    """It changes neither the outputs nor a gradient; its own output is 0, and a shorter batch has equal outputs."""
    module, params = built(LAYERS[name])
    layer: modules.SequenceLayer = module.net.bind(params)
    assert layer(normal(B, T, D), valid=VALID, key=None).shape == (B, T, D)
    upstream = normal(B, T, D, seed=2)
    run = lambda params, x: module.net.apply(params, x, valid=VALID)
    both = quick(lambda x: (run(params, x), jax.vjp(run, params, x)[1](upstream)))
    clean, dirty = (both(jnp.where(VALID[..., None], normal(B, T, D), x)) for x in (0.0, np.nan))
    chex.assert_trees_all_equal(clean, dirty)
    output, (_, slope) = dirty
    assert not np.asarray(output)[~np.asarray(VALID)].any()
    assert not np.asarray(slope)[~np.asarray(VALID)].any()
    near(output[1:, :3], module.apply(params, normal(B, T, D)[1:, :3]))


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "stack"])
def test_the_dependence_of_each_row_on_each_other(name):
    """Each row sees every other, or those behind it; a window or a kernel limits the distance."""
    distance = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
    for layers, allowed in ((LAYERS, distance < T), (CAUSAL, np.tri(T, dtype=bool))):
        reach = {"convolution": 1 if layers is LAYERS else 2, "window": 1}.get(name, T)
        module, params = built(layers[name])
        jacobian = quick(jax.jacobian(functools.partial(module.net.apply, params)))(normal(1, T, D))
        depends = np.asarray(jacobian[0, :, :, 0]).any((1, 3))
        np.testing.assert_array_equal(depends, allowed & (distance <= reach))


def test_linear_attention_is_the_function_between_the_projections():
    positions = modules.positions.Rotary()
    module, params = built(lambda rngs: linear(rngs, positions=positions))
    x = normal(B, T, D)

    def by_hand(params):
        layer = module.net.bind(params)
        query, key, value = layer.attention.project(x)
        mixed = functional.linear_attention(*(functional.rotary(y) for y in (query, key)), value, valid=VALID)
        return jnp.where(VALID[..., None], layer.attention.output(mixed), 0)

    near(module.apply(params, x, valid=VALID), quick(by_hand)(params))


@pytest.mark.full
def test_dropout_has_a_key():
    for make in (
        lambda rngs: modules.AttentionLayer(attention(rngs, dropout=0.5)),
        lambda rngs: modules.AttentionLayer(attention(rngs, dropout=0.5), mask=masks.causal()),
    ):
        module, params = built(make)
        x, key = normal(B, T, D), jax.random.key(0)
        for valid in (None, VALID):
            run = quick(lambda params, key: [module.net.apply(params, x, valid=valid, key=k) for k in (None, key)])  # noqa: B023
            (plain, one), (_, same) = run(params, key), run(params, key)
            assert not np.allclose(plain, one)
            near(one, same)


CHANNELS, DIM = 6, 4


def grid(form, num_heads=1):
    return built(lambda rngs: modules.GridAttention(CHANNELS, DIM, form=form, num_heads=num_heads, rngs=rngs))


def by_convolutions(params, x, scale):
    """Zhang et al. (2019): 1 x 1 convolutions, N x N weights of the flattened grid, a 1 x 1 convolution back."""
    kernel, bias = params["attention"]["kernel"], params["attention"]["bias"]  # [D, 1, 3, DIM] and [1, 3, DIM]
    query, key, value = (functional.convolution(x, kernel[None, None, :, 0, i], bias[0, i]) for i in range(3))
    flat = lambda y: y.reshape(len(x), -1, DIM)
    weights = jax.nn.softmax(scale * flat(query) @ flat(key).swapaxes(1, 2))
    mixed = (weights @ flat(value)).reshape(*x.shape[:3], DIM)
    output = params["attention"]["output"]
    return functional.convolution(mixed, output["kernel"].reshape(1, 1, DIM, CHANNELS), output["bias"])


@pytest.mark.parametrize(("form", "scale"), [("scaled", DIM**-0.5), ("gain", 1.0)])
def test_it_is_one_by_one_convolutions(form, scale):
    module, params = grid(form)
    x = normal(2, 3, 5, CHANNELS)
    added = by_convolutions(params, x, scale) * params.get("gain", 1.0)
    np.testing.assert_allclose(module.apply(params, x), x + added, atol=1e-5)


def test_permuted_pixels_are_permuted_outputs():
    module, params = grid("scaled", num_heads=2)
    x, order = normal(1, 3, 4, CHANNELS), np.random.default_rng(0).permutation(12)
    permute = lambda y: y.reshape(1, 12, CHANNELS)[:, order].reshape(1, 3, 4, CHANNELS)
    np.testing.assert_allclose(module.apply(params, permute(x)), permute(module.apply(params, x)), atol=1e-6)


def test_the_gain_begins_at_zero_and_has_a_gradient():
    module, _ = grid("gain")
    params, x = module.init(jax.random.key(0)), normal(1, 2, 2, CHANNELS)
    np.testing.assert_array_equal(module.apply(params, x), x)
    slope = quick(jax.grad(lambda params: module.net.apply(params, x).sum()))(params)
    assert float(slope["gain"]) != 0
    assert not np.asarray(slope["attention"]["kernel"]).any()


def test_its_attention_can_be_seen():
    module, params = grid("gain")
    seen = {}
    module.net.bind(params)(normal(1, 2, 3, CHANNELS), intermediates=seen)
    weights = seen["self"].weights()
    assert weights.shape == (1, 1, 6, 6)
    np.testing.assert_allclose(weights.sum(-1), jnp.ones((1, 1, 6)), atol=1e-6)
    assert seen["self"].scale == 1.0


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match=r"^form must be 'scaled' or 'gain', got 'sagan'"):
        inspect.unwrap(modules.GridAttention.__init__)(None, CHANNELS, DIM, form="sagan", rngs=None)  # as for a user
