"""One model, many meshes: parameters, moments and activations lie where the table says; the numbers are the same."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from jaxformer import models, pure, sharding, training

SIZES = {"d_model": 16, "num_heads": 4, "d_ff": 32, "num_encoder_layers": 2, "num_decoder_layers": 2}
CONFIG = models.EncoderDecoderConfig(64, 64, norm_position="pre", dropout=0.1, **SIZES)
ALL_AXES = "data=2,fsdp=2,tensor=2"
MORE = {
    "data=8": 1,
    "fsdp=8": 8,
    "tensor=4,data=2": 3,
    "context=2,data=2,tensor=2": 1.7,
    "context=8": 1,
    "slice=2,data=2,tensor=2": 1.7,
}
"""And how many devices share the parameters; biases of hidden units are cut by `tensor` alone."""
MESHES = [ALL_AXES, *(pytest.param(text, marks=pytest.mark.full) for text in MORE)]
OPTIMIZER = optax.adam(1e-2)


@functools.cache
def batch():
    draw = np.random.default_rng(0)
    return {name: jnp.asarray(draw.integers(3, 64, (16, 12)), jnp.int32) for name in ("source", "target", "labels")}


def loss(net, params, batch, key):
    total, count = net.bind(params).cross_entropy(
        batch["source"],
        batch["target"],
        batch["labels"],
        source_valid=batch["source"] < 60,
        target_valid=batch["labels"] < 60,
        key=key,
    )
    return total, count, {}


def network(placement, config=CONFIG):
    """As a task makes it: each device attends with its rows and heads, round a ring where lengths are cut."""
    attention = sharding.sharded_attention(placement.mesh)
    return pure(functools.partial(models.EncoderDecoder, attention=attention), config)


def placed(text, config=CONFIG, **options):
    """State and step on this mesh, and the batch there."""
    placement = sharding.Placement(sharding.mesh(text))
    net = network(placement, config)
    make = functools.partial(training.create, net.init, OPTIMIZER, jax.random.key(0))
    where = placement.state(make, placement.params(net.shapes, net.axes), OPTIMIZER)
    within = placement.under(functools.partial(loss, net))
    step = training.make_step(within, OPTIMIZER, shardings=where, **options)
    return make(shardings=where), step, placement.assemble(batch())


def alone(config=CONFIG, **options):
    net = pure(models.EncoderDecoder, config)
    state = training.create(net.init, OPTIMIZER, jax.random.key(0))
    return state, training.make_step(functools.partial(loss, net), OPTIMIZER, **options)


def ten(state, step, given):
    losses = []
    for _ in range(10):
        state, metrics = step(state, given)
        losses.append(float(metrics["loss_sum"] / metrics["count"]))
    return losses, state


@functools.cache
def expected(**options):
    return ten(*alone(**options), batch())


def assert_ten_steps(found, want, last):
    losses, final = found
    np.testing.assert_allclose(losses[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    for got, leaf in zip(jax.tree.leaves(final.params), jax.tree.leaves(last.params), strict=True):
        np.testing.assert_allclose(got, leaf, atol=2e-4)


@pytest.mark.full
@pytest.mark.parametrize("text", MESHES)
def test_ten_steps_are_those_of_one_device(text):
    """Dropout included: its bits belong to positions, not to devices."""
    assert_ten_steps(ten(*placed(text)), *expected())


@pytest.mark.full
@pytest.mark.parametrize("text", MESHES)
def test_accumulation(text):
    assert_ten_steps(ten(*placed(text, accumulate=2)), *expected(accumulate=2))


@pytest.mark.full
@pytest.mark.parametrize("text", MESHES)
def test_remat(text):
    assert_ten_steps(ten(*placed(text, dataclasses.replace(CONFIG, remat=True))), *expected())


@pytest.mark.parametrize("text", MESHES)
def test_gradients_leaf_by_leaf(text):
    net, placement = pure(models.EncoderDecoder, CONFIG), sharding.Placement(sharding.mesh(text))
    params = net.init(jax.random.key(0))
    value = lambda f: jax.jit(jax.grad(lambda p, b: f(p, b, jax.random.key(1))[0]))
    want = value(functools.partial(loss, net))(params, batch())
    within = placement.under(functools.partial(loss, network(placement)))
    where = placement.params(net.shapes, net.axes)
    got = value(within)(jax.device_put(params, where), placement.assemble(batch()))
    got, want = jax.device_get((got, want))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        scale = np.abs(b).max() + 1e-6
        np.testing.assert_allclose(a / scale, b / scale, atol=2e-5, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("text", MESHES)
def test_state_is_born_sharded_and_reused_where_it_is(text):
    """Every parameter and every moment, before the first step and after it; the step writes over what it is given."""
    state, step, given = placed(text)
    net, placement = pure(models.EncoderDecoder, CONFIG), sharding.Placement(sharding.mesh(text))
    where = placement.params(net.shapes, net.axes)
    before = jax.tree.map(jnp.copy, state)
    program = step.lower(before, given).compile()
    after, _ = program(before, given)
    for one in (state, after):
        for tree in (one.params, one.optimizer[0].mu, one.optimizer[0].nu):
            jax.tree.map(lambda x, s: _same(x, s), tree, where)
    held = sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(state.params))
    whole = sum(x.size for x in jax.tree.leaves(state.params))
    assert held * MORE.get(text, 3) <= whole * 1.1
    assert all(x.is_deleted() for x in jax.tree.leaves(before))
    assert program.memory_analysis().alias_size_in_bytes >= 3 * 4 * held  # parameters and two moments of float32


def _same(x, sharding):
    assert x.sharding.is_equivalent_to(sharding, x.ndim), f"{x.sharding} is not {sharding}"


def test_two_tables_two_placements():
    """The same model, traced under two tables in one process: the second is not the first from jit's cache."""
    net, grid = pure(models.EncoderDecoder, CONFIG), sharding.mesh("data=2,tensor=4")
    params = net.init(jax.random.key(0))
    found = []
    for rules in (sharding.RULES, {"batch": ("tensor",)}):
        encode = lambda p, s: net.bind(p).encode(s).states
        states = jax.jit(sharding.under(rules, grid)(encode))(params, batch()["source"])
        found.append(states.sharding.spec)
    assert found[0][0] == "data"
    assert found[1][0] == "tensor"


def test_first_dimension_that_asks_has_the_axis():
    grid = sharding.mesh("data=2,fsdp=2,tensor=2")
    spec = functools.partial(sharding.spec, rules=sharding.RULES, mesh=grid)
    assert spec(("batch", "length", "model")) == PartitionSpec(("data", "fsdp"), None, None)
    assert spec(("layers", "model", "heads", "kv", "head_dim")) == PartitionSpec(None, "fsdp", "tensor", None, None)
    assert spec(("hidden", "model")) == PartitionSpec("tensor", "fsdp")


def test_a_dimension_that_cannot_be_cut_is_named():
    config = models.EncoderDecoderConfig(64, 64, **(SIZES | {"num_heads": 2}))
    net = pure(models.EncoderDecoder, config)
    with pytest.raises(ValueError, match=r"params\['.*\(heads\) cannot be cut along tensor = 8"):
        sharding.shardings_like(net.shapes, net.axes, sharding.RULES, sharding.mesh("tensor=8"))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", {"data": 8}),
        ("tensor=2,data=*", {"data": 4, "tensor": 2}),
        (" fsdp = 8 ", {"fsdp": 8}),
        ("context=2,tensor=2,data=2", {"data": 2, "context": 2, "tensor": 2}),
    ],
)
def test_mesh(text, shape):
    """In one order, outermost first, whatever the order of the words."""
    found = sharding.mesh(text)
    assert dict(found.shape) == shape
    assert list(found.shape) == list(shape)
    assert len(set(found.devices.flat)) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data=4", "data 4 = 4 devices, but there are 8"),
        ("data=4,tensor=4", "data 4 x tensor 4 = 16 devices, but there are 8"),
        ("tenser=8", "no axis 'tenser'; did you mean 'tensor'?"),
        ("data", "expected axis=size, such as data=8,tensor=4, got 'data'"),
        ("data=2,data=4", "'data' twice"),
        ("data=0", "'data' must be at least 1, got 0"),
        ("data=*,tensor=*", "only one size may be *, got data and tensor"),
        ("data=3,tensor=*", "8 devices cannot be shared out by 3"),
        ("data=" + 5000 * "9", "expected axis=size"),
        ("data=٨", "expected axis=size, such as data=8,tensor=4, got 'data=٨'"),
        ("a;touch x", "expected axis=size, such as data=8,tensor=4, got 'a;touch x'"),
    ],
)
def test_mesh_refusals(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sharding.mesh(text)
