"""Padding is cleared by value and by gradient, whatever it holds, and without it arrays stay the same objects."""

import jax
import jax.numpy as jnp
import pytest

from jaxformer.functional.padding import clear_padding, everywhere

VALID = jnp.array([[True, False], [True, True]])


@pytest.mark.parametrize("features", [(), (3,), (3, 2)])
def test_padding_becomes_0(features):
    x = jnp.full((2, 2, *features), jnp.nan).at[VALID].set(1.0)
    cleared = clear_padding(x, VALID)
    assert (cleared == jnp.where(VALID.reshape(2, 2, *[1] * len(features)), 1, 0)).all()
    assert cleared.dtype == x.dtype
    assert (jax.grad(lambda x: jnp.square(clear_padding(x, VALID)).sum())(x) == 2 * cleared).all()


def test_everything_is_valid_by_default():
    x = jnp.ones((2, 2))
    assert clear_padding(x, None) is x
    assert everywhere(None, (2, 2)).all()
    assert everywhere(VALID, (2, 2)) is VALID
