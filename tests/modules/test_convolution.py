"""Convolutional layers: stacks equal their layers and depend on their receptive field; parameters and axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, modules
from tests.modules.small import built, count, normal, quick

D = 4


def test_a_layer_is_the_function_with_its_parameters():
    module, params = built(lambda rngs: modules.Convolution(D, 6, kernel_size=2, dilation=3, causal=True, rngs=rngs))
    expected = functional.convolution(normal(2, 7, D), params["kernel"], params["bias"], dilation=3, causal=True)
    np.testing.assert_allclose(module.apply(params, normal(2, 7, D)), expected, atol=1e-6)
    assert count(params) == 2 * D * 6 + 6
    assert module.net.axes == {"kernel": (None, "model", "hidden"), "bias": ("hidden",)}
    assert "bias" not in built(lambda rngs: modules.Convolution(D, D, bias=False, rngs=rngs))[1]


def test_kernels_have_glorot_scale_of_the_window():
    """Uniform (Glorot and Bengio 2010): inputs and outputs are those of the whole window."""
    module, _ = built(lambda rngs: modules.Convolution(D, 6, kernel_size=(3, 3), rngs=rngs))
    kernel = np.abs(module.init(jax.random.key(0))["kernel"])
    bound = np.sqrt(6 / (9 * D + 9 * 6))
    assert 0.9 * bound < kernel.max() <= bound


def test_a_stack_is_residual_layers_whose_dilations_grow():
    make = lambda rngs: modules.ConvolutionStack(D, 3, growth=2, activation=jnp.tanh, rngs=rngs)
    module, params = built(make)
    x = y = normal(2, 9, D)
    for i, dilation in enumerate((1, 2, 4)):
        layer = params["layers"][f"{i}"]
        y = y + jnp.tanh(functional.convolution(y, layer["kernel"], layer["bias"], dilation=dilation))
    np.testing.assert_allclose(module.apply(params, x), y, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("growth", "reach"), [(1, 7), (3, 27)])
def test_a_stack_depends_exactly_on_its_receptive_field(growth, reach, causal):
    options = {"growth": growth, "causal": causal, "activation": lambda x: x}
    module, params = built(lambda rngs: modules.ConvolutionStack(D, 3, rngs=rngs, **options))
    length, at = 61, 30
    slope = quick(jax.grad(lambda x: module.net.apply(params, x)[0, at].sum()))(normal(1, length, D))
    seen = np.flatnonzero(np.asarray(slope[0]).any(-1))
    assert module.net.bind(params).receptive_field == reach == len(seen)
    assert seen[-1] == (at if causal else at + reach // 2)
