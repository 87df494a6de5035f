"""A run's placement: rows of a batch over devices, and the shardings of a state."""

import jax
import numpy as np
import optax
import pytest

from jaxformer import sharding, training


@pytest.mark.parametrize(
    ("text", "ways", "length_ways"), [("data=8", 8, 1), ("fsdp=4,tensor=2", 4, 1), ("data=2,context=4", 2, 4)]
)
def test_ways(text, ways, length_ways):
    """Axes of the batch multiply; tensor and context leave rows as they are."""
    placement = sharding.Placement(sharding.mesh(text))
    assert (placement.ways, placement.length_ways) == (ways, length_ways)


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
    """Moments lie where their parameters do; step, key and counters on every device."""
    placement = sharding.Placement(sharding.mesh("fsdp=4,tensor=2"))
    names = {"kernel": ("model", "hidden"), "bias": ("hidden",)}
    init = lambda key: {"kernel": jax.random.normal(key, (8, 4)), "bias": jax.random.normal(key, (4,))}
    params = placement.params(jax.eval_shape(init, jax.random.key(0)), names)
    assert params["kernel"].spec == jax.sharding.PartitionSpec("fsdp", "tensor")
    make = lambda: training.create(init, optax.adam(0.1), jax.random.key(0), ema=True)
    where = placement.state(make, params, optax.adam(0.1))
    assert where.params == where.ema_params == where.optimizer[0].mu == where.optimizer[0].nu == params
    assert where.step == where.key == where.optimizer[0].count == placement.replicated


def test_one_device_needs_no_placing():
    alone = sharding.Placement(sharding.mesh("data=1", jax.devices()[:1]))
    function = lambda x: x
    assert alone.under(function) is function
    assert sharding.Placement(sharding.mesh("data=8")).under(function) is not function
