"""Inside a `jax.shard_map` of the user, with its checks, functions with loops compute the same as outside."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxformer import functional as F
from jaxformer import masks
from tests.modules.small import normal, quick
from tests.selection import first

B, T, D = 4, 6, 4
VALID = np.arange(T) < np.array([[6], [3], [0], [5]])
HEADS = functools.partial(jnp.reshape, shape=(-1, T, 2, 2))


def blockwise(x, learned, valid):
    """Attention with a learned bias and padding, and a sink."""
    mask, query = masks.causal() & masks.padding(valid), HEADS(x)
    options = {"mask": mask, "bias": learned["bias"], "sinks": learned["sinks"]}
    return (F.attention(query, query, query, implementation="blockwise", **options) ** 2).sum()


def tiled_bias(x, learned, valid):
    bias = F.t5_bias(jnp.tile(learned["bias"][0], (6, 1))[:32, :2]) + F.alibi(2)
    return (F.attention(*[HEADS(x)] * 3, bias=bias, implementation="blockwise") ** 2).sum()


def linear_attention(x, learned, valid):
    query = HEADS(x * learned["scale"][None, None])
    return (F.linear_attention(query, query, query, causal=True, valid=valid, chunk=2) ** 2).sum()


def linear_loss(x, learned, valid):
    labels = jnp.argsort(x, -1)[..., 0]
    return F.linear_loss(x, learned["table"], labels, where=valid, chunk=2)[0]


def recurrent(x, learned, valid):
    weights = F.RecurrentWeights(*learned["recurrent"])
    return (F.recurrent(F.rnn_cell, x, weights, valid=valid)[0] ** 2).sum()


LEARNED = {
    "bias": normal(2, T, T),
    "sinks": normal(2),
    "scale": normal(D),
    "table": normal(5, D),
    "recurrent": [normal(*shape) for shape in ((D, 1, 3), (3, 1, 3), (1, 3), (1, 3))],
}


FUNCTIONS = [linear_loss, blockwise, tiled_bias, linear_attention, recurrent]


@pytest.mark.parametrize("function", first(FUNCTIONS, linear_loss, blockwise))
def test_agrees_with_the_function_outside(function):
    """One device has an example with its padding; all have the parameters, whose gradients are summed."""
    mesh, rows, whole = Mesh(jax.devices()[:4], "data"), PartitionSpec("data"), PartitionSpec()

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(rows, whole, rows), out_specs=whole)
    def inside(x, learned, valid):
        return jax.lax.psum(function(x, learned, valid), "data")

    arguments = normal(B, T, D), LEARNED, VALID
    got, expected = (quick(jax.value_and_grad(f, (0, 1)))(*arguments) for f in (inside, function))
    chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=1e-5)
