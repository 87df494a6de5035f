"""Attention that each layer makes for itself: initial values, constants, cached steps, maps and meshes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, masks, models, modules, pure, sharding
from jaxformer.modules import per_layer
from tests.modules.small import normal, quick

CONFIG = models.LanguageModelConfig(9, num_layers=3, d_model=8, num_heads=2, d_ff=8, positions=None)
PAIR = models.EncoderDecoderConfig(9, 9, num_encoder_layers=2, num_decoder_layers=3, d_model=8, num_heads=2, d_ff=8)


class Scaled(nnx.Module):
    """A random factor of each head, one for all heads, and a constant temperature that differs by layer."""

    def __init__(self, rngs, layer):
        self.factor = nnx.Param(1 + 0.3 * jax.random.normal(rngs.params(), (2,)), axes=("heads",))
        self.plain = nnx.Param(jnp.ones(()))
        self.temperature = nnx.Variable(jnp.float32(1 + layer))

    def __call__(self, query, key, value, **options):
        factor = self.factor[...] * self.plain[...] / self.temperature[...]
        return functional.attention(query * factor[None, None, :, None], key, value, **options)


def of(params, part="decoder"):
    return params[part]["stack"]["layers"]


def test_initial_values_differ_between_layers_attentions_and_seeds():
    net = pure(models.EncoderDecoder, PAIR, attention=per_layer(Scaled))
    params = [net.init(jax.random.key(seed)) for seed in (0, 1)]
    factors = [
        of(p, part)[name]["attention"]["factor"]
        for p in params
        for part, name in (("encoder", "attention"), ("decoder", "attention"), ("decoder", "cross"))
    ]
    each = np.concatenate([np.asarray(x).reshape(len(x), -1) for x in factors])
    assert len(np.unique(each.round(5), axis=0)) == len(each) == 2 * (2 + 3 + 3)
    chex.assert_trees_all_equal(net.init(jax.random.key(0)), params[0])


def test_other_initial_values_are_as_without_it():
    same = per_layer(lambda rngs, layer: functional.attention)
    one, two = (pure(models.LanguageModel, CONFIG, **x).init(jax.random.key(0)) for x in ({}, {"attention": same}))
    chex.assert_trees_all_equal(one, two)


def test_layers_count_from_0_in_each_stack():
    seen = []
    make = lambda rngs, layer: seen.append(layer) or functional.attention
    assert pure(models.EncoderDecoder, PAIR, attention=per_layer(make)).shapes
    assert seen == [0, 1] + 2 * [0, 1, 2]  # the decoder has two attentions in a layer
    modules.SelfAttention(8, 2, attention=per_layer(make), rngs=nnx.Rngs(0))
    assert seen[8:] == [0]


def test_a_constant_is_no_parameter():
    net = pure(models.LanguageModel, CONFIG, attention=per_layer(Scaled))
    plain = pure(models.LanguageModel, CONFIG)
    assert net.num_parameters == plain.num_parameters + 3 * 3
    assert of(net.axes)["attention"]["attention"] == {"factor": ("layers", "heads"), "plain": ("layers",)}
    bound = net.bind(net.init(jax.random.key(0)))
    np.testing.assert_array_equal(bound.decoder.stack.layers.attention.attention.temperature[...], [1, 2, 3])


def blocks(attention):
    """A stack of three blocks, as functions of parameters."""

    def make(rngs):
        layer = modules.SelfAttention(8, 2, attention=attention, rngs=rngs)
        return modules.Block(layer, modules.FeedForward(8, 8, rngs=rngs), norm=lambda: modules.LayerNorm(8))

    return pure(lambda config, rngs: modules.Stack(make, 3, rngs=rngs), None)


def test_each_layer_has_its_own_constant():
    """In a full pass, which scans over them, and in unstacked blocks; a gradient passes them by."""
    net, x = blocks(per_layer(Scaled)), normal(2, 5, 8)
    params = net.init(jax.random.key(0))

    def run(params, x):
        stack = net.bind(params)
        y = stack(x, mask=masks.causal())
        for block in stack.blocks(stack.unstacked()):
            x = block(x, mask=masks.causal())
        return y, x

    scanned, looped = quick(run)(params, x)
    np.testing.assert_allclose(scanned, looped, atol=1e-5)
    taken = [block.attention.attention.temperature[...] for block in net.bind(params).blocks(3 * [of_layer(params, 0)])]
    assert taken == [1, 2, 3]
    gradient = quick(jax.grad(lambda params: run(params, x)[0].sum()))(params)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    constant = net.bind(jax.tree.map(jnp.zeros_like, params)).layers.attention.attention.temperature
    assert constant[...].tolist() == [1, 2, 3]


def of_layer(params, i):
    return jax.tree.map(lambda leaf: leaf[i], params["layers"])


class Varied(nnx.Module):
    def __init__(self, make):
        make(self)

    def __call__(self, query, key, value, *, mask):
        return functional.attention(query, key, value, mask=mask)


DIFFERENT = {
    "number": lambda self, layer: setattr(self, "window", 3 + layer),
    "shape": lambda self, layer: setattr(self, "w", nnx.Param(jnp.zeros(3 - layer))),
    "dtype": lambda self, layer: setattr(self, "w", nnx.Param(jnp.zeros(2, (jnp.float32, jnp.bfloat16)[layer % 2]))),
    "kind": lambda self, layer: setattr(self, "w", (nnx.Param, nnx.Variable)[layer % 2](jnp.zeros(2))),
    "axes": lambda self, layer: setattr(self, "w", nnx.Param(jnp.zeros(2), axes=(("heads", "model")[layer % 2],))),
    "missing": lambda self, layer: layer and setattr(self, "w", nnx.Param(jnp.zeros(2))),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_layers_of_another_structure_are_refused(case):
    net = blocks(per_layer(lambda rngs, layer: Varied(functools.partial(DIFFERENT[case], layer=layer))))
    with pytest.raises(ValueError, match="layers 0 and 1 differ in an attribute, or in the shape") as error:
        net.init(jax.random.key(0))
    assert "must be an array in an nnx.Variable (not an nnx.Param)" in str(error.value)
    assert "\n" not in str(error.value)


def test_functions_of_layers_must_be_one():
    def windowed(rngs, layer):
        return functools.partial(functional.attention, implementation=("xla", "reference")[layer % 2])

    for different in (windowed, lambda rngs, layer: lambda q, k, v, mask: v):
        with pytest.raises(ValueError, match="layers 0 and 1 differ"):
            blocks(per_layer(different)).init(jax.random.key(0))
    same = per_layer(lambda rngs, layer: functools.partial(functional.attention, implementation="xla"))
    assert blocks(same).shapes


def test_mistakes_of_factories_are_named():
    with pytest.raises(TypeError, match=r"missing .* argument: 'value'"):  # of jaxtyping here, else of Python
        blocks(per_layer(functional.attention)).init(jax.random.key(0))
    with pytest.raises(TypeError, match=r"got <class .*Scaled"):
        blocks(per_layer(lambda rngs, layer: Scaled)).init(jax.random.key(0))
    with pytest.raises(TypeError, match=r"per_layer\(...\) is no attention function itself"):
        per_layer(Scaled)(1, 2, 3)


def test_a_constant_that_depends_on_the_seed_is_refused():
    """It would be lost: constants are not saved."""
    drawn = lambda rngs, layer: Varied(lambda self: setattr(self, "w", nnx.Variable(jax.random.normal(rngs(), (2,)))))
    with pytest.raises(ValueError, match=r"the constant layers/attention/attention/w differs between seeds"):
        assert blocks(per_layer(drawn)).shapes
    own = lambda rngs, layer: Varied(
        lambda self: setattr(self, "w", nnx.Variable(jax.random.normal(jax.random.key(layer), (2,))))
    )
    net = blocks(per_layer(own))
    w = net.bind(net.init(jax.random.key(3))).layers.attention.attention.w[...]
    assert len(np.unique(w)) == 6


@pytest.mark.full
def test_parameters_are_sharded_by_their_axes():
    """On a mesh they are placed as those of the library, and a step gives the same loss."""
    net, x = blocks(per_layer(Scaled)), normal(4, 5, 8)
    params = net.init(jax.random.key(0))
    shardings = sharding.shardings_like(
        net.shapes, net.axes, sharding.RULES, sharding.mesh("data=2,tensor=2", jax.devices()[:4])
    )
    own = shardings["layers"]["attention"]["attention"]
    assert own["factor"].spec[1] == "tensor"
    assert own["plain"].is_fully_replicated
    loss = lambda params, x: jnp.square(net.apply(params, x, mask=masks.causal())).sum()
    expected = quick(jax.value_and_grad(loss))(params, x)
    got = quick(jax.value_and_grad(loss))(jax.device_put(params, shardings), x)
    chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_maps_have_the_constants_of_their_layers():
    net = blocks(per_layer(Scaled))
    params, x = net.init(jax.random.key(0)), normal(2, 5, 8)
    captured = quick(lambda p, x: net.bind(p).run(x, mask=masks.causal(), capture=("self",))[1]["self"])(params, x)
    maps = quick(lambda captured: captured.weights())(captured)
    assert maps.shape == (3, 2, 2, 5, 5)
    for i in range(3):
        layer = captured.layer(i)
        factor = params["layers"]["attention"]["attention"]["factor"][i][None, None, :, None]
        expected = functional.attention_weights(layer.query * factor / (1 + i), layer.key, mask=masks.causal())
        np.testing.assert_allclose(maps[i], expected, atol=1e-5)


def test_a_search_takes_constants_of_any_dtype():
    """The check of rows fills the parameters with random numbers, but keeps the constants."""

    class Kept(nnx.Module):
        def __init__(self, rngs, layer):
            self.heads = nnx.Variable(jnp.arange(2) <= layer)
            self.depth = nnx.Variable(jnp.float32(layer + 2))

        def __call__(self, query, key, value, *, mask=None):
            y = functional.attention(query * jnp.log(self.depth[...] - 1), key, value, mask=mask)  # infinite below 2
            return jnp.where(self.heads[...][None, None, :, None], y, 2 * y)

    net = pure(models.LanguageModel, CONFIG, attention=per_layer(Kept))
    start = lambda params: net.bind(params).start(batch_size=1, beam_size=2, length=4)
    assert jax.eval_shape(start, net.shapes)
