"""One model, many meshes: placements follow the table, and the numbers are the same."""

import dataclasses
import functools
import re
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from jaxformer import models, pure, sharding, training
from tests.modules.small import quick
from tests.sharding.small import CONFIG, SIZES, assert_ten_steps, batch, expected, loss, network, placed, ten

ALL_AXES = "data=2,fsdp=2,tensor=2"
MORE = {
    "data=8": 1,
    "fsdp=8": 8,
    "tensor=4,data=2": 3,
    "context=2,data=2,tensor=2": 1.7,
    "context=8": 1,
    "slice=2,data=2,tensor=2": 1.7,
}
"""And how many devices share the parameters; biases of hidden units are sharded over `tensor` alone."""
MESHES = [ALL_AXES, *(pytest.param(text, marks=pytest.mark.full) for text in MORE)]


TRAININGS = {
    "plain": (CONFIG, {}),
    "accumulation": (CONFIG, {"num_microbatches": 2}),
    "remat": (dataclasses.replace(CONFIG, remat=True), {}),
}


@pytest.mark.full
@pytest.mark.parametrize("text", MESHES)
@pytest.mark.parametrize("name", TRAININGS)
def test_ten_steps_equal_those_of_one_device(name, text):
    """Including dropout, whose bits depend on positions, not on devices."""
    config, options = TRAININGS[name]
    assert_ten_steps(ten(*placed(text, config, **options)), *expected(**options))


@pytest.mark.full
@pytest.mark.parametrize("text", MESHES)
def test_gradients_leaf_by_leaf(text):
    net, placement = pure(models.EncoderDecoder, CONFIG), sharding.Placement(sharding.mesh(text))
    params = net.init(jax.random.key(0))
    value = lambda f: jax.jit(jax.grad(lambda p, b: f(p, b, jax.random.key(1))[0]))
    want = value(functools.partial(loss, net))(params, batch())
    within = placement.with_axis_rules(functools.partial(loss, network(placement)))
    where = placement.params(net.shapes, net.axes)
    got = value(within)(jax.device_put(params, where), placement.assemble(batch()))
    got, want = jax.device_get((got, want))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        scale = np.abs(b).max() + 1e-6
        np.testing.assert_allclose(a / scale, b / scale, atol=2e-5, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("text", MESHES)
def test_state_is_created_sharded_and_donated(text):
    """Every parameter and every moment, before the first step and after it; the step overwrites its input."""
    state, step, given = placed(text, dataclasses.replace(CONFIG, dropout=0.0))
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


@pytest.mark.full
def test_two_tables_two_placements():
    """The same model, traced under two tables in one process: the second is not the first from jit's cache."""
    net, grid = pure(models.EncoderDecoder, CONFIG), sharding.mesh("data=2,tensor=4")
    params = quick(net.init)(jax.random.key(0))
    found = []
    for rules in (sharding.RULES, {"batch": ("tensor",)}):
        encode = lambda p, s: net.bind(p).encode(s).states
        states = jax.jit(sharding.with_axis_rules(rules, grid)(encode))(params, batch()["source"])
        found.append(states.sharding.spec)
    assert found[0][0] == "data"
    assert found[1][0] == "tensor"


def test_the_first_dimension_that_names_an_axis_has_it():
    grid = sharding.mesh("data=2,fsdp=2,tensor=2")
    spec = functools.partial(sharding.spec, rules=sharding.RULES, mesh=grid)
    assert spec(("batch", "length", "model")) == PartitionSpec(("data", "fsdp"), None, None)
    assert spec(("layers", "model", "heads", "kv", "head_dim")) == PartitionSpec(None, "fsdp", "tensor", None, None)
    assert spec(("hidden", "model")) == PartitionSpec("tensor", "fsdp")


@pytest.mark.parametrize(
    ("text", "size", "message", "other_mesh"),
    [
        ("tensor=2,fsdp=4", 63, "2; take a size that 2 divides, such as 64, or a mesh without tensor; ", "fsdp=8"),
        (
            "tensor=4,data=2",
            62,
            "4; take a size that 4 divides, such as 64, or a mesh with tensor=2; ",
            "tensor=2,data=4",
        ),
    ],
)
def test_a_dimension_that_cannot_be_sharded_is_named_with_remedies(text, size, message, other_mesh):
    """Another size or mesh, which users of the command line can type; or a vocabulary that is not sharded."""

    def place(text=text, size=size, rules=sharding.RULES):
        net = pure(models.EncoderDecoder, models.EncoderDecoderConfig(size, size, **SIZES))
        return sharding.Placement(sharding.mesh(text), rules).params(net.shapes, net.axes)

    advice = 'in Python, Placement(mesh, {**sharding.RULES, "vocab": ()})'
    with pytest.raises(
        ValueError, match=r"params\['.*" + re.escape(f"(vocab) cannot be sharded over tensor = {message}{advice}")
    ):
        place()
    assert place(other_mesh)
    assert place(size=64)
    assert place(rules={**sharding.RULES, "vocab": ()})


@pytest.mark.parametrize("make", [optax.sm3, lambda rate: optax.masked(optax.sm3(rate), {"w": True, "b": False})])
def test_several_moments_of_a_parameter(make):
    """SM3 has one for each dimension; the optimizer's steps equal those of one device."""
    shapes = {"w": jnp.ones((8, 4)), "b": jnp.ones(4)}
    net = types.SimpleNamespace(shapes=shapes, axes={"w": ("model", "hidden"), "b": ("hidden",)}, init=lambda _: shapes)
    optimizer, x = make(0.1), jnp.arange(16.0).reshape(2, 8) / 16
    placement = sharding.Placement(sharding.mesh("fsdp=2,tensor=4"))
    total = lambda params, x, key: (jnp.sin(x @ params["w"] + params["b"][None]).sum(), jnp.float32(len(x)))
    state, shardings = training.create_sharded(net, optimizer, jax.random.key(0), placement=placement)
    expected = training.create(net.init, optimizer, jax.random.key(0))
    step = training.make_step(total, optimizer, shardings=shardings)
    state, _ = step(step(state, placement.assemble(x))[0], placement.assemble(x))
    alone = training.make_step(total, optimizer)
    expected, _ = alone(alone(expected, x)[0], x)
    chex.assert_trees_all_close(state, expected, rtol=0, atol=1e-5)


def test_a_rule_is_a_tuple():
    """The letters of a string are no axis names: such a rule placed nothing."""
    placement = sharding.Placement(sharding.mesh("fsdp=8"), {**sharding.RULES, "model": "fsdp"})
    with pytest.raises(TypeError, match=r"the mesh axes of 'model' must be a tuple, such as \('fsdp',\)"):
        placement.params({"kernel": jnp.ones((8, 2))}, {"kernel": ("model", None)})
