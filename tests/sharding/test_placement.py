"""A run's placement: rows of a batch over devices, and the shardings of a state."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import sharding, training
from jaxformer.errors import ConfigError
from tests.modules.small import quick


@pytest.mark.parametrize(
    ("text", "rows", "lengths"), [("data=8", 8, 1), ("fsdp=4,tensor=2", 4, 1), ("data=2,context=4", 2, 4)]
)
def test_numbers_of_shards(text, rows, lengths):
    """Axes of the batch multiply; tensor and context do not change the rows."""
    placement = sharding.Placement(sharding.mesh(text))
    assert (placement.num_batch_shards, placement.num_length_shards) == (rows, lengths)


def test_rows_are_filled_up():
    """This one process holds every row: 10 rows become 12 on four devices, 16 for two parts of each."""
    placement = sharding.Placement(sharding.mesh("data=4,tensor=2"))
    np.testing.assert_array_equal(placement.rows_here(10), np.arange(12))
    np.testing.assert_array_equal(placement.rows_here(10, parts=2), np.arange(16))


def test_assembled_rows_lie_in_order():
    placement = sharding.Placement(sharding.mesh("data=4,tensor=2"))
    x = np.arange(24).reshape(8, 3)
    (found,) = placement.assemble([x])
    np.testing.assert_array_equal(found, x)
    assert found.sharding.is_equivalent_to(placement.rows, 2)
    for shard in found.addressable_shards:
        assert shard.data.shape == (2, 3)
        np.testing.assert_array_equal(shard.data, x[shard.index])


def test_state_shardings():
    """Moments are placed like their parameters; step, key and counters are on every device."""
    placement = sharding.Placement(sharding.mesh("fsdp=4,tensor=2"))
    names = {"kernel": ("model", "hidden"), "bias": ("hidden",)}
    init = lambda key: {"kernel": jax.random.normal(key, (8, 4)), "bias": jax.random.normal(key, (4,))}
    params = placement.params(jax.eval_shape(init, jax.random.key(0)), names)
    assert params["kernel"].spec == jax.sharding.PartitionSpec("fsdp", "tensor")
    make = lambda: training.create(init, optax.adam(0.1), jax.random.key(0), ema=True)
    where = placement.state(make, params, optax.adam(0.1))
    assert where.params == where.ema_params == where.optimizer[0].mu == where.optimizer[0].nu == params
    assert where.step == where.key == where.optimizer[0].count == placement.replicated


def test_moments_of_another_shape_are_replicated():
    """Adafactor keeps rows and columns of a kernel, NovoGrad one number for each; JAX refused them on a mesh."""
    placement = sharding.Placement(sharding.mesh("fsdp=4,tensor=2"))
    names = {"kernel": ("model", "hidden"), "bias": ("hidden",)}
    init = lambda key: {"kernel": jnp.zeros((8, 4)), "bias": jnp.zeros(4)}
    params = placement.params(jax.eval_shape(init, jax.random.key(0)), names)
    find = lambda optimizer: placement.state(
        lambda: training.create(init, optimizer, jax.random.key(0)), params, optimizer
    ).optimizer[0]
    factored = find(optax.adafactor(0.1, min_dim_size_to_factor=4))
    everywhere = {"kernel": placement.replicated, "bias": placement.replicated}
    assert factored.v_row == factored.v_col == everywhere
    assert factored.v == {"kernel": placement.replicated, "bias": params["bias"]}
    norms = find(optax.novograd(0.1))
    assert norms.mu == params
    assert norms.nu == everywhere


@pytest.mark.full
def test_muon_on_a_mesh():
    """Momentum is placed like the kernels, and updates of sharded matrices equal those of one device."""
    placement = sharding.Placement(sharding.mesh("fsdp=4,tensor=2"))
    names = {"query": ("model", "heads", "head_dim"), "down": ("hidden", "model"), "bias": ("model",)}
    sizes = {"query": (8, 2, 6), "down": (16, 8), "bias": (8,)}
    init = lambda key: {name: jax.random.normal(key, size) for name, size in sizes.items()}
    config = training.MuonConfig(learning_rate=1.0, warmup_steps=0, schedule=training.ConstantRate())
    optimizer = training.make_optimizer(config, steps=10, axes=names)
    params = placement.params(jax.eval_shape(init, jax.random.key(0)), names)
    where = placement.state(lambda: training.create(init, optimizer, jax.random.key(0)), params, optimizer)
    momentum = where.optimizer[0].inner_states["muon"].inner_state[0].mu
    assert momentum["query"] == params["query"] != placement.replicated
    assert momentum["down"] == params["down"] != placement.replicated

    draw = np.random.default_rng(0).standard_normal
    values, gradients = ({name: jnp.asarray(draw(size), jnp.float32) for name, size in sizes.items()} for _ in range(2))
    with jax.numpy_dtype_promotion("standard"):
        given = gradients, optimizer.init(values), values
        expected = quick(optimizer.update)(*given)[0]
        sharded = jax.device_put(given, (params, where.optimizer, params))
        found = quick(optimizer.update, out_shardings=(params, where.optimizer))(*sharded)[0]
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-4)


def test_one_device_needs_no_placing():
    alone = sharding.Placement(sharding.mesh("data=1", jax.devices()[:1]))
    function = lambda x: x
    assert alone.with_axis_rules(function) is function
    assert sharding.Placement(sharding.mesh("data=8")).with_axis_rules(function) is not function


NAMES = {"kernel": ("model", "hidden"), "gain": (), "bias": ("hidden",)}
SHAPES = {
    "kernel": jax.ShapeDtypeStruct((8, 6), "float32"),
    "gain": jax.ShapeDtypeStruct((), "float32"),
    "bias": jax.ShapeDtypeStruct((6,), "bfloat16"),
}


def rows(table):
    """The cells of a table, by the first of each row."""
    cells = [[cell.strip() for cell in re.split(r"\s{2,}", line)] for line in table.splitlines()]
    return {first: rest for first, *rest in cells}


def test_the_table_of_parameter_placements():
    """Placements follow the rules; bytes are those of one device."""
    placement = sharding.Placement(sharding.mesh("fsdp=4,tensor=2"))
    table = placement.describe({"layer": SHAPES}, {"layer": NAMES})
    found = rows(table)
    assert found["parameter"] == ["shape", "logical axes", "sharded over", "bytes/device"]
    assert found["layer/kernel"] == ["8 x 6", "model, hidden", "fsdp, tensor", "24"]  # 2 x 3 float32
    assert found["layer/bias"] == ["6", "hidden", "tensor", "6"]
    assert found["layer/gain"] == ["scalar", "4"]
    assert found["all"] == ["55", "34"]
    assert len({len(line) for line in table.splitlines()}) == 1


def test_arrays_are_described_by_their_actual_placement():
    placement = sharding.Placement(sharding.mesh("fsdp=4,tensor=2"))
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), SHAPES)
    assert rows(placement.describe(params, NAMES))["kernel"][2:] == ["all on device 0", "192"]
    placed = jax.device_put(params, placement.params(SHAPES, NAMES))
    assert placement.describe(placed, NAMES) == placement.describe(SHAPES, NAMES)
    everywhere = jax.device_put(params, placement.replicated)
    assert rows(placement.describe(everywhere, NAMES))["kernel"][2:] == ["-, -", "192"]


@pytest.mark.parametrize(("batch", "got"), [(np.ones((6, 4)), "6 rows"), (np.float32(1), "a scalar")])
def test_rows_that_the_mesh_does_not_divide_are_refused(batch, got):
    placement = sharding.Placement(sharding.mesh("fsdp=4,tensor=2"))
    with pytest.raises(ValueError, match=f"a batch along fsdp = 4 must have a multiple of 4 rows .* got {got}"):
        placement.assemble({"x": batch})


def test_meshes_that_cannot_be_used_are_refused():
    """Axes as from `jax.make_mesh` gave an error of JAX; along unknown axes, all devices computed the same."""
    with pytest.raises(ConfigError, match=r"AxisType.Auto,\) \* 2"):
        sharding.Placement(jax.make_mesh((4, 2), ("data", "tensor")))
    auto = (jax.sharding.AxisType.Auto,) * 2
    own = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=auto)
    with pytest.raises(ConfigError, match=r"no rule names a mesh axis of \('dp', 'tp'\).*\"batch\": \(\"dp\",\)"):
        sharding.Placement(own)
    assert sharding.Placement(own, {**sharding.RULES, "batch": ("dp",)}).num_batch_shards == 4
    assert sharding.Placement(jax.make_mesh((4, 2), ("data", "tensor"), axis_types=auto)).num_batch_shards == 4
