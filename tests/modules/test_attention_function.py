"""Mistakes in a user's own attention function are named."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxformer import functional, modules
from jaxformer.modules.attention_function import check_partial


class Scaled(nnx.Module):
    """Attention with a learned factor."""

    def __init__(self):
        self.factor = nnx.Param(jnp.ones(()))

    def __call__(self, query, key, value, **options):
        return self.factor[...] * functional.attention(query, key, value, **options)


def test_a_class_instead_of_an_instance_is_refused():
    """A layer would call it with queries, keys and values as the arguments of its initialization."""
    check_partial(Scaled())
    with pytest.raises(TypeError, match="an instance of a module, got the class Scaled; call Scaled"):
        check_partial(Scaled)


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
