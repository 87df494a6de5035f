"""The order of positions on a ring of devices; ring attention keeps the contract of every implementation.


It sends only the keys and values that other devices need.
"""

import dataclasses
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import functional, masks, sharding
from jaxformer.functional.attention import ring
from jaxformer.functional.attention.base import make_request
from tests.contracts import biases
from tests.contracts.attention import AttentionContract, arrays
from tests.contracts.biases import BiasContract
from tests.contracts.jaxprs import equations
from tests.selection import first


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_zigzag_and_back(shards, axis):
    """Shard r holds the chunks r and 2 P - 1 - r; `unzigzag` is the inverse."""
    x = jnp.arange(16 * 3).reshape(16, 3) if axis == 0 else jnp.arange(16 * 3).reshape(3, 16)
    reordered = functional.zigzag(x, shards, axis=axis)
    chunks, held = (np.split(np.asarray(y), 2 * shards, axis) for y in (x, reordered))
    for r in range(shards):
        np.testing.assert_array_equal(held[2 * r], chunks[r])
        np.testing.assert_array_equal(held[2 * r + 1], chunks[2 * shards - 1 - r])
    np.testing.assert_array_equal(functional.unzigzag(reordered, shards, axis=axis), x)


@pytest.mark.parametrize("zigzag", [False, True], ids=["in order", "zigzag"])
def test_positions_of_a_device(zigzag):
    """All devices together hold every position once, in the order of `zigzag` or of the sequence."""
    devices = ring.Ring("context", 4, (1, 1, 16, 16), zigzag=zigzag)
    held = jnp.concatenate([devices.positions(rank, 4) for rank in range(4)])
    np.testing.assert_array_equal(held, functional.zigzag(jnp.arange(16), 4, axis=0) if zigzag else jnp.arange(16))


@pytest.mark.parametrize(
    ("zigzag", "local_length", "largest", "expected"),
    [(False, 12, 256, 12), (False, 12, 5, 4), (True, 12, 256, 6), (True, 12, 4, 3)],
)
def test_blocks_divide_each_chunk(zigzag, local_length, largest, expected):
    devices = ring.Ring("context", 2, (1, 1, 24, 24), zigzag=zigzag)
    assert devices.block(local_length, largest) == expected


@pytest.mark.parametrize(("length", "shards", "block", "expected"), [(8, 4, 256, 8), (9, 4, 256, 12), (9, 2, 3, 12)])
def test_fill_pads_to_equal_blocks(length, shards, block, expected):
    x = jnp.ones((2, length, 3))
    padded = ring.fill(x, shards, block=block)
    assert padded.shape == (2, expected, 3)
    np.testing.assert_array_equal(padded[:, :length], x)
    assert not np.asarray(padded[:, length:]).any()


def test_refuses_an_array_of_biases():
    query = jax.ShapeDtypeStruct((1, 4, 2, 8), jnp.float32)
    assert ring.refuse(make_request(query, query, query, bias=functional.alibi(2))) is None
    reason = ring.refuse(make_request(query, query, query, bias=jnp.zeros((1, 1, 4, 4))))
    assert reason == "a bias must be a Bias, which is computed tile by tile, not a T x S array"


def mesh(**sizes):
    devices = np.array(jax.devices()[: np.prod(list(sizes.values()))])
    return Mesh(devices.reshape(tuple(sizes.values())), tuple(sizes))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Table(functional.Bias):
    """A bias array, read tile by tile."""

    array: jax.Array

    def tile(self, query, query_index, key_index):
        rows = query_index if self.array.shape[2] > 1 else jnp.zeros_like(query_index)
        columns = key_index if self.array.shape[3] > 1 else jnp.zeros_like(key_index)
        return self.array[:, :, rows][..., columns]


class RingContract(AttentionContract):
    mesh: Mesh
    options: dict
    lacks = {"sharding": ".*incompatible devices.*"}  # noqa: RUF012  # its mesh has other devices than the kit
    partly = {"second derivatives": "reverse over reverse: raises .*"}  # noqa: RUF012

    @classmethod
    def attend(cls, query, key, value, *, bias=None, implementation=None, **options):
        bias = Table(bias[(None,) * (4 - bias.ndim)]) if isinstance(bias, jax.Array) else bias
        return sharding.ring_attention(cls.mesh, "context", **cls.options)(query, key, value, bias=bias, **options)


@pytest.mark.full
class TestRing(RingContract):
    """Four devices in a ring: shards of two positions, the last ones padded."""

    mesh, options = mesh(context=4), {}


class TestRingBiases(BiasContract, TestRing):
    """Biases that no array holds, on a ring."""


def split(grid, **options):
    return sharding.ring_attention(grid, "context", **options)


def long_arrays(length, heads=4, key_heads=2, batch=2):
    draw = np.random.default_rng(length).standard_normal
    shapes = [(batch, length, n, 8) for n in (heads, key_heads, key_heads, heads)]
    return tuple(jnp.asarray(draw(shape), jnp.float32) for shape in shapes)


def value_and_gradients(attend, given, **options):
    query, key, value, upstream = given
    loss = lambda q, k, v: jnp.sum(attend(q, k, v, **options) * upstream)
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(query, key, value)


EVERYWHERE = {"data": 2, "context": 2, "tensor": 2}
LOWERED = jnp.where(jnp.arange(16) % 3 == 0, -1e9, 0.0).reshape(1, 1, 16, 1)
HEADS = masks.dense(np.random.default_rng(0).random((2, 4, 48, 48)) > 0.4)
AGREES = {
    # name: axes of the mesh, arrays, options; masks of all rows and heads reach the device that has them
    "none": (EVERYWHERE, long_arrays(48), {}),
    "causal": (EVERYWHERE, long_arrays(48), {"mask": masks.causal()}),
    "window": (EVERYWHERE, long_arrays(48), {"mask": masks.window(9)}),
    "padding": (EVERYWHERE, long_arrays(48), {"mask": masks.lengths(jnp.array([48, 11])) & masks.causal()}),
    "heads": (EVERYWHERE, long_arrays(48), {"mask": HEADS}),
    # The dropped weights do not depend on the device.
    "dropout": (EVERYWHERE, long_arrays(24), {"dropout": functional.Dropout(0.4, jax.random.key(5))}),
    # The log-sum-exp of such a row is merged in two parts: in one sum the number of its keys would be lost.
    "lowered": ({"context": 4}, long_arrays(16), {"bias": Table(LOWERED), "mask": masks.causal() & masks.window(9)}),
    # Queries and keys are sharded each by their own length; neither needs to be a multiple.
    "cross": (
        {"context": 8},
        (long_arrays(10)[0], *long_arrays(23)[1:3], long_arrays(10)[3]),
        {"mask": masks.lengths(jnp.array([23, 9]))},
    ),
    # Shards of 520 positions are not a number of whole blocks; padding would move the positions of their chunks.
    "no padding": ({"context": 2}, long_arrays(1040, 1, 1, 1), {"mask": masks.causal()}),
}
ORDERS = [
    *((name, "in order") for name in AGREES if name != "no padding"),
    *((name, "zigzag") for name in ("none", "causal", "window", "padding", "no padding")),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_agrees_with_attention(name, order):
    """Values and gradients on a mesh equal those of one device."""
    sizes, given, options = AGREES[name]
    expected = value_and_gradients(functional.attention, given, **options)
    zigzag, count = order == "zigzag", sizes["context"]
    axes = {"batch": "data", "heads": "tensor"} if "data" in sizes else {}
    if zigzag:
        given = tuple(functional.zigzag(x, count) for x in given)
    loss, gradients = value_and_gradients(split(mesh(**sizes), zigzag=zigzag, **axes), given, **options)
    if zigzag:
        gradients = tuple(functional.unzigzag(x, count) for x in gradients)
    chex.assert_trees_all_close((loss, gradients), expected, rtol=1e-5, atol=3e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["t5", "relative keys by head", "transformer-xl", "sum"])
def test_biases_of_sharded_heads(name):
    """Each device takes the tables of its own heads: values, and gradients of queries and learned arrays."""
    query, key, value, upstream = arrays(batch=2)
    attend = split(mesh(context=4, tensor=2), heads="tensor")

    def loss(learned, query, attend):
        bias = biases.made(name, learned) + functional.alibi(4)
        return jnp.sum(attend(query, key, value, bias=bias, mask=masks.causal(1)) * upstream)

    run = jax.jit(jax.value_and_grad(loss, (0, 1)), static_argnums=2)
    found, expected = (run(biases.LEARNED, query, f) for f in (attend, functional.attention))
    chex.assert_trees_all_close(found, expected, atol=2e-5, rtol=1e-5)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Loudness(functional.Bias):
    """The product of the queries of all heads with a vector for each; it has no `take_heads`."""

    vectors: jax.Array  # [N, H]

    def tile(self, query, query_index, key_index):
        loudness = (query * self.vectors.astype(query.dtype)[None, :, None]).sum(-1, keepdims=True)
        return jnp.broadcast_to(loudness, (*loudness.shape[:3], key_index.shape[0]))


@pytest.mark.full
def test_a_bias_that_needs_all_heads_is_refused():
    """It multiplies the queries of each head by a vector: the error explains it, instead of a shape error."""
    query, key, value, _ = long_arrays(16)
    heads, dim = query.shape[2:]
    bias = Loudness(jnp.ones((heads, dim)))
    attend = split(mesh(context=4, tensor=2), heads="tensor")
    words = "ring attention cannot do this: Loudness works on the queries of all 4 heads .* has 2 heads"
    with pytest.raises(ValueError, match=words):
        attend(query, key, value, bias=bias)
    on_mesh = sharding.sharded_attention(
        sharding.mesh("data=1,tensor=2", jax.devices()[:2]), implementation="blockwise"
    )
    with pytest.raises(ValueError, match=words.replace("ring", "blockwise")):
        on_mesh(query, key, value, bias=bias)
    assert (
        split(mesh(context=4))(query, key, value, bias=bias).shape
        == value.shape[:1] + query.shape[1:3] + value.shape[3:]
    )


@pytest.mark.parametrize("empty", first(["batch", "length"], "batch"))
def test_empty_arrays(empty):
    x = jnp.ones((0, 8, 2, 4) if empty == "batch" else (2, 0, 2, 4))
    assert jax.jit(jax.grad(lambda x: split(mesh(context=4))(x, x, x, mask=masks.causal()).sum()))(x).shape == x.shape


def compiled(length, grid, **options):
    shape = jax.ShapeDtypeStruct(
        (1, length, 2, 16), jnp.float32, sharding=NamedSharding(grid, PartitionSpec(None, "context"))
    )
    attend = split(grid, **options)
    loss = lambda q, k, v: attend(q, k, v, mask=masks.causal()).sum()
    return jax.jit(jax.grad(loss, (0, 1, 2))).lower(shape, shape, shape).compile()


@pytest.mark.full
def test_only_shards_are_sent():
    """No device gathers the keys: shards are passed on, and memory is that of a shard, forward and backward."""
    text = compiled(4096, mesh(context=8)).as_text() or ""
    assert "collective-permute" in text
    for whole in ("all-gather", "all-to-all", "all-reduce"):
        assert whole not in text
    memory = [compiled(16_384, mesh(context=n)).memory_analysis().temp_size_in_bytes for n in (2, 8)]
    assert memory[1] < 0.5 * memory[0]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_keys_are_not_sent_after_the_last_device(size):
    """Forward, keys and values visit the other devices only; backward, their gradients return to their device."""
    x = jax.ShapeDtypeStruct((1, 8, 2, 4), jnp.float32)
    attend = split(mesh(context=size))
    gradient = jax.grad(lambda q, k, v: attend(q, k, v).sum(), (0, 1, 2))
    for function, sent in ((attend, 2 * (size - 1)), (gradient, 2 * (size - 1) + 4 * size)):
        program = jax.make_jaxpr(function)(x, x, x).jaxpr
        assert sum(n * len(e.invars) for e, n in equations(program) if e.primitive.name == "ppermute") == sent


def blocks_visited(order, length=4096, size=8, block=64):
    """By each device, over the whole round, under a causal mask."""
    around = ring.Ring("context", size, (1, 1, length, length), zigzag=order == "zigzag")
    local = length // size
    ranges = ring._key_ranges(masks.causal(), around, local, block, (0, 1))
    total = np.zeros(size, int)
    for rank in range(size):
        for owner in range(size):
            starts = np.asarray(around.positions(owner, local))[::block]
            bounds = ring.key_bounds(ranges[rank], starts, block)
            total[rank] += (bounds[:, 1] - bounds[:, 0]).sum()
    return total


def test_zigzag_balances_a_causal_mask():
    """The busiest device of a ring does nearly twice the mean in order, and hardly more than the mean in zigzag."""
    in_order, zigzag = blocks_visited("in order"), blocks_visited("zigzag")
    blocks = 4096 // 64
    assert in_order.sum() == zigzag.sum() == blocks * (blocks + 1) // 2
    assert in_order.max() > 1.8 * in_order.mean()
    assert zigzag.max() < 1.01 * zigzag.mean()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda q: sharding.ring_attention(mesh(context=2), "contxt"), "no axis 'contxt'; it has ['context']"),
        (
            lambda q: split(mesh(context=2, data=4), batch="data")(q, q, q),
            "batch = 2 cannot be sharded over 'data'",
        ),
        (lambda q: split(mesh(context=2, tensor=4), heads="tensor")(q, q, q), "key heads = 2 cannot be sharded"),
        (lambda q: split(mesh(context=4), zigzag=True)(q, q, q), "lengths that 8 divides, got (12, 12)"),
        (lambda q: split(mesh(context=4))(q, q, q, bias=jnp.ones((1, 1, 12, 12))), "not a T x S array"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(jnp.ones((2, 12, 2, 4)))
