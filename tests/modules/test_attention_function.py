"""Mistakes in a user's own attention function are named, and uses that would be wrong are noticed."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxformer import functional, masks, models, modules, pure, sharding
from jaxformer.errors import ConfigError
from jaxformer.modules.attention_function import Heads, check_linear, check_rows
from tests.selection import first

HEADS = Heads(4, 2, 8)
CONFIG = models.LanguageModelConfig(9, num_layers=2, d_model=16, num_heads=4, d_ff=8, positions=None)


def begin(attention):
    """Begins to decode with a model."""
    net = pure(models.LanguageModel, CONFIG, attention=attention)
    start = lambda params: net.bind(params).start(batch_size=1, beam_size=1, length=4)
    return jax.eval_shape(start, net.shapes)


def rotating(query, key, value, **options):
    return functional.attention(functional.rotary(query, None), functional.rotary(key, None), value, **options)


def with_distances(query, key, value, **options):
    return functional.attention(query, key, value, bias=functional.alibi(query.shape[2]), **options)


def in_a_window(query, key, value, *, mask):
    return functional.attention(query, key, value, mask=mask & masks.window(20))


def of_the_last_keys(query, key, value, *, mask):
    """It is right only if the cache has no room left: the mask is not read."""
    return functional.attention(query, key, value, mask=masks.causal(key.shape[1] - query.shape[1]))


def of_one_key_head(query, key, value, *, mask):
    """It takes the wrong key heads for a late row: a mean over the keys, of those beyond the mask too."""
    return functional.attention(query, key - key.mean(1, keepdims=True), value, mask=mask) + value.mean()


@pytest.mark.parametrize(
    "attention",
    first([rotating, with_distances, in_a_window, of_the_last_keys, of_one_key_head], rotating, of_one_key_head),
)
def test_rows_that_depend_on_their_index_are_refused(attention):
    with pytest.raises(ValueError, match=f"of the attention function {attention.__name__} differs by"):
        check_rows(attention, HEADS)
    with pytest.raises(ValueError, match="PositionScheme, which get absolute positions"):
        begin(attention)


@functools.wraps(functional.attention)
def wrapped(query, key, value, **options):
    rows = jnp.arange(1.0, 1.0 + query.shape[1])[None, :, None, None]
    return functional.attention(query, key, value**2, **options) * rows


def test_a_wrapper_is_not_taken_for_what_it_wraps():
    """It has the module and the name of a function of the library."""
    with pytest.raises(ConfigError, match="of the attention function attention differs by"):
        check_rows(wrapped, HEADS)
    with pytest.raises(ConfigError, match="is not linear in its values"):
        check_linear(wrapped, HEADS)


def test_a_function_that_takes_no_single_row_is_refused():
    def even(query, key, value, *, mask):
        if query.shape[1] % 2:
            raise NotImplementedError("lengths must be even")
        return functional.attention(query, key, value, mask=mask)

    with pytest.raises(ValueError, match=r"even cannot compute a row alone.*NotImplementedError: lengths must be even"):
        check_rows(even, HEADS)


@pytest.mark.parametrize(
    "attention",
    [
        pytest.param(functional.attention, marks=pytest.mark.full),
        pytest.param(functools.partial(functional.attention, implementation="xla"), marks=pytest.mark.full),
        sharding.sharded_attention(sharding.mesh("data=8")),
        lambda query, key, value, **options: functional.attention(2 * query, key, value, **options),
    ],
    ids=["own", "partial", "sharded", "a user's"],
)
def test_rows_that_do_not_are_accepted(attention):
    for heads in (HEADS, Heads(4, 4, 4, 0.5, functional.soft_cap(2.0), True)):
        check_rows(attention, heads)
        check_linear(attention, heads)


class Distances(nnx.Module):
    """Learned costs of distances between indices; they begin at 0, when nothing would be noticed."""

    def __init__(self):
        self.cost = nnx.Param(jnp.zeros(4))

    def __call__(self, query, key, value, *, mask=None):
        distance = jnp.abs(jnp.arange(query.shape[1])[:, None] - jnp.arange(key.shape[1])[None])
        bias = self.cost[...][:, None, None] * distance.astype(jnp.float32)[None]
        return functional.attention(query, key, value, mask=mask, bias=bias)


def test_the_parameters_of_a_module_are_tried_with_random_values():
    """When a search begins, and its parameters are traced."""
    with pytest.raises(ValueError, match="of the attention function Distances differs"):
        begin(Distances())


def test_an_encoder_takes_any_function():
    """It has no cached step."""
    config = models.EncoderConfig(9, num_layers=1, d_model=16, num_heads=4, d_ff=8)
    assert pure(models.make_encoder, config, attention=in_a_window_or_none).shapes


def in_a_window_or_none(query, key, value, *, mask=None):
    return in_a_window(query, key, value, mask=masks.causal() if mask is None else mask)


def test_modules_without_position_are_accepted():
    class Scaled(nnx.Module):
        def __init__(self):
            self.factor = nnx.Param(jnp.ones(()))

        def __call__(self, query, key, value, *, mask=None):
            return functional.attention(query * self.factor[...], key, value, mask=mask)

    net = pure(models.LanguageModel, CONFIG, attention=Scaled())
    assert net.shapes["decoder"]["stack"]["layers"]["attention"]["attention"]["factor"].shape == (2,)
    assert isinstance(modules.SelfAttention(8, 2, attention=Scaled(), rngs=nnx.Rngs(0)).check_steps(), type(None))


class Normalized(nnx.Module):
    """Not linear in its values; its parameters have a name that maps could have."""

    def __init__(self):
        self.weights = nnx.Param(jnp.ones(4))

    def __call__(self, query, key, value, *, mask=None):
        return functional.rms_norm(functional.attention(query, key, value, mask=mask), jnp.ones(value.shape[-1]))


def test_a_parameter_named_weights_offers_no_maps():
    """It was taken for a function that returns them, and the identity's output for maps."""
    with pytest.raises(ValueError, match="Normalized is not linear in its values, so it has no maps"):
        check_linear(Normalized(), HEADS)


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial, jax.jit], ids=["function", "partial", "jit"])
def test_maps_of_any_number_are_offered_by_any_function(wrap):
    def own(query, key, value, **options):
        return Normalized()(query, key, value, **options)

    own.weights = wrap(lambda query, key: functional.attention_weights(query, key)[:, ::2])
    check_linear(own, HEADS)
    x = jax.random.normal(jax.random.key(0), (2, 3, 4, 8))
    expected = functional.attention_weights(x, x)
    assert jnp.allclose(functional.weights_of(own, x, x), expected[:, ::2])
    assert jnp.allclose(functional.weights_of(own, x, x, heads=[1], rows=[2]), expected[:, 2:3, 2:])
    with pytest.raises(ValueError, match=r"heads must be indices from 0 to 1, got \[2\]"):
        functional.weights_of(own, x, x, heads=[2])


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda y: y.swapaxes(1, 2), r"shape \[1, 2, 3, 4\]"),
        (lambda y: y.reshape(1, 3, 8), r"shape \[1, 3, 8\]"),
        (lambda y: y.mean(1, keepdims=True), r"shape \[1, 1, 2, 4\]"),
        (lambda y: (y, None), "a tuple"),
    ],
)
def test_results_of_another_shape_are_refused(change, got):
    """Some failed with an IndexError; the residual connection broadcast one of a single query, without an error."""
    own = lambda *arrays, **options: change(functional.attention(*arrays, **options))
    layer = modules.SelfAttention(8, 2, attention=own, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=rf"must return an array \[B, T, N, H\] = \[1, 3, 2, 4\], got {got}"):
        layer(jax.random.normal(jax.random.key(0), (1, 3, 8)))
