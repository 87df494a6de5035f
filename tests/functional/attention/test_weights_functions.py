"""The function that computes the weights of an attention function; unknown weights are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.attention.weights_functions import has_weights, weights_function

QUERY, KEY = jnp.asarray(np.random.default_rng(0).standard_normal((2, 2, 5, 4, 8)), jnp.float32)


def halves(query, key, *, mask=None, factor=0.5):
    """Weights of another kind: a constant times the indices of row and head."""
    batch, rows, heads, _ = query.shape
    grid = factor * np.outer(np.arange(1, heads + 1), np.arange(1, rows + 1))
    return jnp.broadcast_to(jnp.asarray(grid, jnp.float32)[None, ..., None], (batch, heads, rows, key.shape[1]))


def plain(query, key, value, *, mask=None, dropout=None, factor=0.5):
    """An attention function with the weights `halves`."""
    return jnp.einsum("bnts,bsnh->btnh", halves(query, key, mask=mask, factor=factor), value)


HALVES = functional.with_weights(halves)(plain)


def test_attention_has_its_weights_with_any_implementation():
    """Its implementation, mask and dropout in a partial do not matter to its weights; a scale does."""
    softmax = functional.attention_weights(QUERY, KEY, mask=masks.causal())
    for options in ({}, {"implementation": "blockwise"}, {"implementation": "xla", "dropout": None, "mask": None}):
        found = weights_function(functools.partial(functional.attention, **options))
        np.testing.assert_array_equal(found(QUERY, KEY, mask=masks.causal()), softmax)
    inner = functools.partial(functional.attention, implementation="reference")
    scaled = weights_function(functools.partial(inner, scale=2.0))
    np.testing.assert_array_equal(scaled(QUERY, KEY), functional.attention_weights(QUERY, KEY, scale=2.0))
    np.testing.assert_array_equal(scaled(QUERY, KEY, scale=1.0), functional.attention_weights(QUERY, KEY, scale=1.0))


def test_a_function_declares_its_weights():
    """It computes the same as before, with the weights from which its output is computed."""
    value = KEY + 1
    np.testing.assert_array_equal(HALVES(QUERY, KEY, value), plain(QUERY, KEY, value))
    assert (HALVES.__name__, HALVES.__doc__) == ("plain", plain.__doc__)
    weights = weights_function(HALVES)(QUERY, KEY)
    np.testing.assert_allclose(jnp.einsum("bnts,bsnh->btnh", weights, value), HALVES(QUERY, KEY, value), rtol=1e-6)
    doubled = weights_function(functools.partial(HALVES, factor=1.0, dropout=None))
    np.testing.assert_array_equal(doubled(QUERY, KEY), 2 * weights)


def test_rows_and_heads_are_chosen_for_it():
    found = weights_function(HALVES)
    everything = found(QUERY, KEY)
    np.testing.assert_array_equal(
        found(QUERY, KEY, rows=[4, 1], heads=[3, 0, 2]), everything[:, [3, 0, 2]][:, :, [4, 1]]
    )
    np.testing.assert_array_equal(found(QUERY, key=KEY, rows=[4]), everything[:, :, [4]])
    np.testing.assert_array_equal(found(query=QUERY, key=KEY), everything)
    with pytest.raises(ValueError, match="heads must be indices from 0 to 3"):
        found(QUERY, KEY, heads=[4])
    with pytest.raises(ValueError, match="rows must be indices from 0 to 4"):
        found(QUERY, KEY, rows=[5])


def test_a_function_that_takes_rows_and_heads_receives_them():
    asked = []

    def choosing(query, key, *, mask=None, rows=None, heads=None):
        asked.append((rows, heads))
        return functional.attention_weights(query, key, mask=mask, rows=rows, heads=heads)

    found = weights_function(functional.with_weights(choosing)(plain))
    assert found(QUERY, KEY, rows=[1], heads=[0]).shape == (2, 1, 1, 5)
    assert asked == [([1], [0])]


def test_weights_of_another_shape_are_refused():
    transposed = functional.with_weights(lambda query, key: halves(query, key)[:, 0])(plain)
    with pytest.raises(ValueError, match=r"<lambda> must return weights .* = \[2, 4, 5, 5\], got \[2, 5, 5\]"):
        weights_function(transposed)(QUERY, KEY)


@functools.wraps(HALVES)
def wrapped(query, key, value, **options):
    """Another function, to which `functools.wraps` gave the attributes of `HALVES`."""
    return -plain(query, key, value, **options)


@pytest.mark.parametrize(
    "attention",
    [
        plain,
        wrapped,
        jax.jit(functional.attention),
        functools.partial(plain, factor=1.0),
        functools.partial(functional.attention, QUERY),
        functools.wraps(functional.attention)(lambda *args, **options: functional.attention(*args, **options)),
    ],
    ids=["plain", "wraps", "jit", "partial", "positional", "wraps attention"],
)
def test_unknown_weights_are_refused(attention):
    """Softmax weights would be wrong for a function that may have others."""
    assert not has_weights(attention)
    with pytest.raises(ValueError, match=r"does not declare its weights: decorate it with functional\.with_"):
        weights_function(attention)


def test_the_error_names_the_function():
    with pytest.raises(ValueError, match="the attention function plain does not declare"):
        weights_function(plain)
