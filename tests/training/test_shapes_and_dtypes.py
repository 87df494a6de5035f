"""A checkpoint of other arrays is refused, and the refusal says whether the model or the optimizer is another."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import training
from tests.training.small import abstract, init, new_state, saved


def test_another_model_is_refused(tmp_path):
    saved(tmp_path, steps=(1,))
    target = abstract(new_state())
    for change, message in (
        ({"kernel": jax.ShapeDtypeStruct((5, 3), jnp.float32)}, r"kernel is \(\(4, 3\), 'float32'\) in the checkpoint"),
        ({"kernel": jax.ShapeDtypeStruct((4, 3), jnp.bfloat16)}, "'bfloat16'"),
        ({"extra": jax.ShapeDtypeStruct((4,), jnp.float32)}, "extra is missing in the checkpoint"),
    ):
        with training.Checkpoints(tmp_path) as checkpoints:
            wrong = dataclasses.replace(target, params={**target.params, **change})
            with pytest.raises(training.OtherModelError, match=message):
                checkpoints.restore(1, wrong)


def test_another_optimizer_is_named_as_such(tmp_path):
    """If all else is the same; the parameters are restored without it, on any mesh."""
    states = saved(tmp_path, steps=(1,))
    other = training.create(init, optax.sgd(0.1), jax.random.key(0))
    with training.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(
            training.OtherModelError, match="it has the state of another optimizer: optimizer/1/count is"
        ):
            checkpoints.restore(1, abstract(other))
        wider = dataclasses.replace(other, params={**other.params, "kernel": jnp.zeros((5, 3))})
        with pytest.raises(training.OtherModelError, match="it belongs to another model: params/kernel is"):
            checkpoints.restore(1, abstract(wider))
        everywhere = jax.sharding.NamedSharding(jax.make_mesh((8,), ("x",)), jax.sharding.PartitionSpec())
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), other.params)
        for params in (other.params, shapes):
            found = checkpoints.restore_params(1, params)
            chex.assert_trees_all_equal(found, states[1].params)
            assert all(a.sharding == b.sharding for a, b in zip(*map(jax.tree.leaves, (found, params)), strict=True))
        with pytest.raises(
            training.OtherModelError, match=r"params/kernel is \(\(4, 3\), 'float32'\) in the checkpoint"
        ):
            checkpoints.restore_params(1, wider.params)


def test_leaves_that_cannot_be_saved_are_named(tmp_path):
    with training.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(training.CheckpointError, match="cannot save step 2: a/k is a typed key; save its"):
            checkpoints.save(2, {"a": {"k": jax.random.key(0)}}, {})
        with pytest.raises(training.CheckpointError, match="a/k is a float; save an array, such as jnp"):
            checkpoints.save(2, {"a": {"k": 0.5}}, {})
        with pytest.raises(training.CheckpointError, match="a/k is int64, and would be restored as int32; save that"):
            checkpoints.save(2, {"a": {"k": np.array([2**40])}}, {})
        checkpoints.save(2, {"a": {"k": jax.random.key_data(jax.random.key(0))}}, {})


def test_a_step_of_another_run_is_refused(tmp_path):
    """A step without a fingerprint, as of earlier versions, is read; so is each without the run's fingerprint."""
    for step, fingerprint in enumerate(("", "mine", "other"), 1):
        with training.Checkpoints(tmp_path, fingerprint=fingerprint) as checkpoints:
            checkpoints.save(step, {"x": jnp.full(2, step)}, {})
    target = {"x": jnp.zeros(2, int)}
    with training.Checkpoints(tmp_path, fingerprint="mine") as checkpoints:
        assert [int(checkpoints.restore(step, target)[0]["x"][0]) for step in (1, 2)] == [1, 2]
        for restore in (lambda: checkpoints.restore(3, target), lambda: checkpoints.restore_latest(target)):
            with pytest.raises(training.OtherModelError, match=r"step 3 in .* belongs to another run"):
                restore()
        assert checkpoints.steps() == [1, 2, 3]
    with training.Checkpoints(tmp_path) as checkpoints:
        assert int(checkpoints.restore_latest(target)[0]["x"][0]) == 3
