"""One model, many meshes: placements follow the table, and the numbers are the same."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxformer import models, pure, sharding
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


@pytest.mark.full
@pytest.mark.parametrize("text", MESHES)
def test_ten_steps_equal_those_of_one_device(text):
    """Including dropout, whose bits depend on positions, not on devices."""
    assert_ten_steps(ten(*placed(text)), *expected())


@pytest.mark.full
@pytest.mark.parametrize("text", MESHES)
def test_accumulation(text):
    assert_ten_steps(ten(*placed(text, num_microbatches=2)), *expected(num_microbatches=2))


@pytest.mark.full
@pytest.mark.parametrize("text", MESHES)
def test_remat(text):
    assert_ten_steps(ten(*placed(text, dataclasses.replace(CONFIG, remat=True))), *expected())


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


def test_a_dimension_that_cannot_be_sharded_is_named():
    config = models.EncoderDecoderConfig(64, 64, **(SIZES | {"num_heads": 2}))
    net = pure(models.EncoderDecoder, config)
    with pytest.raises(ValueError, match=r"params\['.*\(heads\) cannot be sharded over tensor = 8"):
        sharding.shardings_like(net.shapes, net.axes, sharding.RULES, sharding.mesh("tensor=8"))


def test_the_message_has_a_remedy():
    """A vocabulary that no axis divides need not be sharded."""
    net = pure(models.EncoderDecoder, models.EncoderDecoderConfig(63, 63, **SIZES))
    mesh = sharding.mesh("tensor=2,fsdp=4")
    advice = re.escape('Placement(mesh, {**sharding.RULES, "vocab": ()})')
    with pytest.raises(ValueError, match=r"\(vocab\) cannot be sharded over tensor = 2; " + advice):
        sharding.Placement(mesh).params(net.shapes, net.axes)
    assert sharding.Placement(mesh, {**sharding.RULES, "vocab": ()}).params(net.shapes, net.axes)


def test_a_rule_is_a_tuple():
    """The letters of a string are no axis names: such a rule placed nothing."""
    placement = sharding.Placement(sharding.mesh("fsdp=8"), {**sharding.RULES, "model": "fsdp"})
    with pytest.raises(TypeError, match=r"the mesh axes of 'model' must be a tuple, such as \('fsdp',\)"):
        placement.params({"kernel": jnp.ones((8, 2))}, {"kernel": ("model", None)})
