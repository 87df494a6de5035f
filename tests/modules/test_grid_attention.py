"""V1: attention over a grid equals its form in 1 x 1 convolutions, and is independent of positions."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, modules
from tests.modules.small import built, normal, quick

D, DIM = 6, 4


def make(form, num_heads=1):
    return built(lambda rngs: modules.GridAttention(D, DIM, form=form, num_heads=num_heads, rngs=rngs))


def by_convolutions(params, x, scale):
    """Zhang et al. (2019): 1 x 1 convolutions, N x N weights of the flattened grid, a 1 x 1 convolution back."""
    kernel, bias = params["attention"]["kernel"], params["attention"]["bias"]  # [D, 1, 3, DIM] and [1, 3, DIM]
    query, key, value = (functional.convolution(x, kernel[None, None, :, 0, i], bias[0, i]) for i in range(3))
    flat = lambda y: y.reshape(len(x), -1, DIM)
    weights = jax.nn.softmax(scale * flat(query) @ flat(key).swapaxes(1, 2))
    mixed = (weights @ flat(value)).reshape(*x.shape[:3], DIM)
    output = params["attention"]["output"]
    return functional.convolution(mixed, output["kernel"].reshape(1, 1, DIM, D), output["bias"])


@pytest.mark.parametrize(("form", "scale"), [("scaled", DIM**-0.5), ("gain", 1.0)])
def test_it_is_one_by_one_convolutions(form, scale):
    module, params = make(form)
    x = normal(2, 3, 5, D)
    added = by_convolutions(params, x, scale) * params.get("gain", 1.0)
    np.testing.assert_allclose(module.apply(params, x), x + added, atol=1e-5)


def test_permuted_pixels_are_permuted_outputs():
    module, params = make("scaled", num_heads=2)
    x, order = normal(1, 3, 4, D), np.random.default_rng(0).permutation(12)
    permute = lambda y: y.reshape(1, 12, D)[:, order].reshape(1, 3, 4, D)
    np.testing.assert_allclose(module.apply(params, permute(x)), permute(module.apply(params, x)), atol=1e-6)


def test_the_gain_begins_at_zero_and_has_a_gradient():
    module, _ = make("gain")
    params, x = module.init(jax.random.key(0)), normal(1, 2, 2, D)
    np.testing.assert_array_equal(module.apply(params, x), x)
    slope = quick(jax.grad(lambda params: module.net.apply(params, x).sum()))(params)
    assert float(slope["gain"]) != 0
    assert not np.asarray(slope["attention"]["kernel"]).any()


def test_its_attention_can_be_seen():
    module, params = make("gain")
    seen = {}
    module.net.bind(params)(normal(1, 2, 3, D), intermediates=seen)
    weights = seen["self"].weights()
    assert weights.shape == (1, 1, 6, 6)
    np.testing.assert_allclose(weights.sum(-1), jnp.ones((1, 1, 6)), atol=1e-6)
    assert seen["self"].scale == 1.0


def test_an_unknown_form_is_refused():
    unchecked = inspect.unwrap(modules.GridAttention.__init__)  # without the type checks of the tests
    with pytest.raises(ValueError, match="form must be scaled or gain, got 'product'"):
        unchecked(object.__new__(modules.GridAttention), 4, 4, form="product", rngs=nnx.Rngs(0))


def test_heads_divide_the_features():
    with pytest.raises(ValueError, match="multiple of num_heads 3, got 4"):
        make("scaled", num_heads=3)
