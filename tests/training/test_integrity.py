"""The integrity of checkpoints: every flipped bit is noticed on every mesh, other arrays are refused and named, and
reads that are in progress when another one fails leave no traces in the interpreter."""

import asyncio
import dataclasses
import gc
import sys
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import training
from jaxformer.training import integrity
from jaxformer.training.integrity import checksums, is_intact, signed
from tests.training.small import abstract, data_files, init, new_state, saved


def test_checksums_notice_every_flipped_bit():
    random = np.random.default_rng(0)
    tree = {
        "a": jnp.asarray(random.normal(size=(7, 5)), jnp.float32),
        "b": jnp.arange(6, dtype=jnp.bfloat16),
        "c": jnp.array([True, False]),
    }
    before = jax.device_get(checksums(tree))
    for _ in range(60):
        index, bit = random.integers(35), random.integers(32)
        raw = np.asarray(tree["a"]).copy().reshape(-1).view(np.uint32)
        raw[index] ^= np.uint32(1 << bit)
        after = jax.device_get(checksums({**tree, "a": jnp.asarray(raw.view(np.float32).reshape(7, 5))}))
        assert (after["['a']"] != before["['a']"]).any()
        assert (after["['b']"] == before["['b']"]).all()


def test_every_width_and_scalars():
    """One flipped bit shows in leaves of one, two, four and eight bytes, and in a leaf without dimensions."""
    for dtype in (jnp.uint8, jnp.float16, jnp.int32, jnp.complex64):
        leaf = jnp.arange(6).astype(dtype)
        raw = np.asarray(leaf).copy()
        raw.view(np.uint8)[-1] ^= 1
        assert (checksums({"x": leaf})["['x']"] != checksums({"x": jnp.asarray(raw)})["['x']"]).any()
    assert (checksums(jnp.float32(1))[""] != checksums(jnp.float32(2))[""]).any()
    assert checksums({"x": ...}) == {}
    with jax.enable_x64(True):
        leaf, other = (jnp.asarray([1.0, x], jnp.float64) for x in (1.0, 1.0 + 2**-50))
        assert (checksums({"x": leaf})["['x']"] != checksums({"x": other})["['x']"]).any()


def test_two_elements_that_change_places_show():
    one, other = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([2.0, 1.0, 3.0])
    assert (checksums(one)[""] != checksums(other)[""]).any()


def test_metadata():
    """The digest is that of what JSON gives back: keys that are numbers become texts, tuples become lists."""
    metadata = signed({"step": 3, "score": 0.1, "steps": (1, 2), "by_step": {3: "x"}})
    assert metadata["steps"] == [1, 2]
    assert metadata["by_step"] == {"3": "x"}
    assert is_intact(metadata)
    assert not is_intact(metadata | {"score": 0.2})
    assert not is_intact({name: value for name, value in metadata.items() if name != "score"})
    assert is_intact({"step": 3})


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
        for leaf, message in (
            (jax.random.key(0), "cannot save step 2: a/k is a typed key; save its"),
            (0.5, "a/k is a float; save an array, such as jnp"),
            (np.array([2**40]), "a/k is int64, and would be restored as int32; save that"),
        ):
            with pytest.raises(training.CheckpointError, match=message):
                checkpoints.save(2, {"a": {"k": leaf}}, {})
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


@pytest.fixture
def reported(monkeypatch):
    """What a user's own hook receives."""
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reports.append(str(unraisable.exc_value)))
    return reports


def test_a_failed_restore_leaves_the_hook_of_the_user(tmp_path, reported):
    """It stayed replaced until the end of the process."""
    mine = sys.unraisablehook
    saved(tmp_path, steps=(1,))
    for file in data_files(tmp_path / "1"):
        file.write_bytes(b"damaged")
    with training.Checkpoints(tmp_path) as checkpoints, pytest.raises(training.CheckpointError, match="step 1"):
        checkpoints.restore(1, abstract(new_state()))
    gc.collect()
    assert sys.unraisablehook is mine
    assert reported == []


class Bad:
    def __del__(self):
        raise OSError("of the user")


def test_other_reports_reach_the_hook_of_the_user(reported):
    with integrity.silent_reads():
        sys.unraisablehook(types.SimpleNamespace(object=None, exc_value=RuntimeError("Event loop is closed")))
        Bad()
    assert reported == ["of the user"]


def test_reads_in_progress_are_waited_for(monkeypatch):
    """A read that ends later would be reported later, to the hook of the user."""

    async def read(future):
        await future

    read.__code__ = read.__code__.replace(co_filename="/site-packages/orbax/reader.py")
    loop = asyncio.new_event_loop()
    reads, slept = [read(loop.create_future())], []
    reads[0].send(None)
    monkeypatch.setattr(integrity.time, "sleep", lambda _: slept.append(len(reads)) or (slept[2:] and reads.clear()))
    monkeypatch.setattr(integrity.time, "monotonic", lambda: 0.0)  # collecting garbage takes seconds under load
    integrity.wait_for_reads()
    loop.close()
    assert slept == [1, 1, 1]
