"""Properties of the residual network: shifts, independence of examples, attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models
from jaxformer.config import kind_of
from jaxformer.models import choices
from tests.models.small import Small
from tests.modules.small import normal, quick

SIZES = {"widths": (4, 6), "num_blocks": 1, "num_classes": 3, "image_size": (8, 8)}


@functools.cache
def small(attention=None):
    config = models.ResidualNetworkConfig(**SIZES, attention=attention)
    return Small(config, models.ResidualNetwork)


@pytest.mark.parametrize("attention", [None, choices.ScaledAttention(d_attention=2)], ids=kind_of)
def test_a_shifted_picture_is_the_same_to_it(attention):
    """By an even number of pixels, away from the borders; attention and the mean know no positions."""
    model = small(attention)
    image = np.zeros((2, 40, 40, 3), np.float32)
    image[:, 18:22, 18:22] = normal(2, 4, 4, 3)
    logits = model.apply(model.params, jnp.asarray(image))
    assert (logits.shape, logits.dtype) == ((2, 3), jnp.float32)
    moved = model.apply(model.params, jnp.asarray(np.roll(image, (2, -2), (1, 2))))
    np.testing.assert_allclose(moved, logits, atol=1e-5)
    assert np.abs(model.apply(model.params, jnp.asarray(np.roll(image, 1, 1))) - logits).max() > 1e-4


def layer_norm(x, params):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + 1e-5) * params["scale"] + params["bias"]


def test_the_network_is_its_formula():
    """He et al. 2016b: the skip path of a block that changes reads what the first convolution reads (figure 4e)."""
    model, images = small(), normal(2, 8, 8, 3)
    p = jax.tree.map(np.asarray, model.params)

    def convolve(x, params, stride=1):
        return np.asarray(functional.convolution(jnp.asarray(x), **jax.tree.map(jnp.asarray, params), stride=stride))

    x = convolve(images, p["stem"])
    for name, stride in (("1_1", 1), ("2_1", 2)):
        block = p["blocks"][name]
        y = np.maximum(layer_norm(x, block["norm"]), 0)
        assert ("skip" in block) == (stride == 2)
        skip = convolve(y, block["skip"], stride=stride) if stride == 2 else x
        y = np.maximum(layer_norm(convolve(y, block["first"], stride=stride), block["second_norm"]), 0)
        x = skip + convolve(y, block["second"])
    features = np.maximum(layer_norm(x, p["norm"]), 0)
    expected = features.mean((1, 2)) @ p["output"]["kernel"] + p["output"]["bias"]
    np.testing.assert_allclose(model.apply(model.params, images), expected, rtol=1e-4, atol=1e-5)
    assert features.shape == (2, 4, 4, 6)


def test_examples_are_independent():
    model, images = small(), normal(2, 8, 8, 3)
    slope = quick(jax.grad(lambda x: model.net.apply(model.params, x)[0].sum()))(images)
    assert np.asarray(slope[0]).any()
    assert not np.asarray(slope[1]).any()


@pytest.mark.full
def test_attention_is_added_after_its_stage():
    """The rest is the network without it: with an output of zeros it changes nothing."""
    model, plain, images = small(choices.ScaledAttention(d_attention=2)), small(), normal(2, 8, 8, 3)
    params = dict(model.params)
    attention = params.pop("attention")
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, plain.params)
    output = jax.tree.map(np.zeros_like, attention["attention"]["output"])
    silent = params | {"attention": {"attention": attention["attention"] | {"output": output}}}
    np.testing.assert_array_equal(model.apply(silent, images), plain.apply(params, images))
    bind = model.net.bind
    logits, captured = quick(lambda params: (bind(params).run(images)[0], bind(params).captured(images)))(model.params)
    np.testing.assert_allclose(logits, model.apply(model.params, images), atol=1e-6)
    assert captured["grid"].weights().shape == (2, 1, 16, 16)  # after the second stage, of half the height and width
    with pytest.raises(ValueError, match="unknown attention names"):
        jax.eval_shape(lambda params: plain.net.bind(params).captured(images), plain.params)


def test_dropout_needs_a_key():
    config = models.ResidualNetworkConfig(**SIZES, dropout=0.5)
    model, images = Small(config, models.ResidualNetwork), normal(2, 8, 8, 3)
    plain = model.apply(model.params, images)
    np.testing.assert_array_equal(plain, small().apply(model.params, images))
    assert (plain != model.apply(model.params, images, key=jax.random.key(0))).any()


def test_derived_sizes():
    assert models.ResidualNetworkConfig(attention=choices.GainAttention()).attention_dim == 8  # an eighth of 64
    assert models.ResidualNetworkConfig(attention=choices.ScaledAttention(d_attention=3)).attention_dim == 3
    assert models.VisionTransformerConfig().has_class_vector
    assert not models.VisionTransformerConfig(pooling="mean").has_class_vector
