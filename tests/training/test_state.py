"""A new training state."""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import models, pure, sharding, training
from tests.training.small import OPTIMIZER, STEP, batch, init, new_state


def test_a_state_is_created_on_a_mesh_in_one_call():
    """It equals that of one device, every leaf lies as its sharding says, and no device held a whole parameter."""
    config = models.LanguageModelConfig(64, num_layers=2, d_model=16, num_heads=4, d_ff=32)
    net, key = pure(models.LanguageModel, config), jax.random.key(3)
    placement = sharding.Placement(sharding.mesh("fsdp=4,tensor=2"))
    state, shardings = training.create_sharded(net, OPTIMIZER, key, placement=placement, ema=True)
    assert jax.tree.all(jax.tree.map(lambda x, where: x.sharding.is_equivalent_to(where, x.ndim), state, shardings))
    assert shardings.params == shardings.ema_params == placement.params(net.shapes, net.axes)
    alone = training.create(net.init, OPTIMIZER, key, ema=True)
    chex.assert_trees_all_close(state, alone, rtol=1e-6)
    table = state.params["decoder"]["embeddings"]["tokens"]["table"]
    assert {shard.data.shape for shard in table.addressable_shards} == {(32, 4)}
    make = jax.jit(net.init, out_shardings=shardings.params).lower(key).compile()
    assert make.memory_analysis().temp_size_in_bytes < table.nbytes


def test_a_state_follows_from_its_key():
    """The parameters and the run's key are drawn from two halves of the key; nothing else is random."""
    state, again = new_state(), new_state()
    chex.assert_trees_all_equal(state, again)
    init_key, step_key = jax.random.split(jax.random.key(0))
    chex.assert_trees_all_equal(state.params, init(init_key))
    chex.assert_trees_all_equal(state.key, jax.random.key_data(step_key))
    other = training.create(init, OPTIMIZER, jax.random.key(1)).params
    assert not (state.params["kernel"] == other["kernel"]).all()
    assert int(state.step) == 0


def test_best_params_are_the_moving_average_if_there_is_one():
    """It begins as a copy of the parameters, in its own memory."""
    plain, averaged = new_state(), new_state(ema=True)
    assert training.best_params(plain) is plain.params
    assert training.best_params(averaged) is averaged.ema_params
    chex.assert_trees_all_equal(averaged.params, averaged.ema_params)
    kernels = averaged.params["kernel"], averaged.ema_params["kernel"]
    assert kernels[0].unsafe_buffer_pointer() != kernels[1].unsafe_buffer_pointer()


def test_a_state_of_given_parameters_is_a_copy():
    """A step, to which the state is donated, leaves them alone."""
    params = init(jax.random.key(5))
    kept = jax.tree.map(np.asarray, params)
    state = training.create(lambda key: params, OPTIMIZER, jax.random.key(0))
    state, _ = STEP(state, batch(0))
    assert not (state.params["kernel"] == params["kernel"]).all()
    chex.assert_trees_all_equal(kept, params)


def test_the_text_of_a_state_is_short():
    """As the last value of a notebook's cell: of an abstract or donated one, too, and never the values."""
    params = {"kernel": np.ones((200, 300), np.float32), "bias": np.ones(300, np.float32)}
    state = training.TrainState(jnp.zeros((), jnp.int32), params, (params, params), None, np.zeros(2, np.uint32))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    assert repr(state) == "TrainState(step=0, 60,300 parameters)"
    assert len(repr(training.Result(state, "done", training.Progress(), 1))) < 250
    assert repr(shapes) == "TrainState(60,300 parameters)"
    assert repr(jax.tree.map(lambda x: jax.sharding.PartitionSpec(), shapes)) == "TrainState(2 leaves without sizes)"
    state.step.delete()
    assert repr(state) == "TrainState(60,300 parameters)"


def test_parameters_in_place_of_a_function_are_refused():
    for given in (init(jax.random.key(5)), pure(models.LanguageModel, models.LanguageModelConfig(9))):
        with pytest.raises(TypeError, match=f"net.init or lambda key: params, got a {type(given).__name__}"):
            inspect.unwrap(training.create)(given, OPTIMIZER, jax.random.key(0))


def test_a_key_of_another_implementation_is_refused():
    """A state holds the raw key of the steps, which read it as one of the default implementation."""
    with pytest.raises(ValueError, match=r"key is of rbg, .* threefry2x32; call jax\.config\.update\("):
        training.create(init, OPTIMIZER, jax.random.key(0, impl="rbg"))
