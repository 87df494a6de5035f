"""The layers of one interface: shapes, padding of any content, and each one's definition."""

import functools

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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rngs: modules.RecurrentLayer(5, bidirectional=True, rngs=rngs), "d_model must be even .*, got 5"),
        (lambda rngs: linear(rngs, num_kv_heads=1), "as many key heads as query heads"),
        (lambda rngs: linear(rngs, dropout=0.1), "without dropout"),
        (lambda rngs: linear(rngs, logits=modules.Logits(scale=1.0)), "without scale"),
        (lambda rngs: linear(rngs, logits=modules.Logits(sinks=True)), "without sinks"),
        (lambda rngs: linear(rngs, positions=modules.positions.Alibi(2)), "without a bias, such as Rotary, got Alibi"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        built(lambda rngs: make(rngs)(normal(B, T, D)))
