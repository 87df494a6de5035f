"""Checkpoints: a saved state is restored bit for bit; damage is noticed, and the step before is used."""

import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import sys
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import training
from jaxformer.multihost import cluster
from tests.selection import first
from tests.training.small import OPTIMIZER, abstract, batch, data_files, flip, loss, metadata, new_state, saved


def test_restore_inverts_save(tmp_path):
    states = saved(tmp_path)
    with training.Checkpoints(tmp_path) as checkpoints:
        state, about = checkpoints.restore_latest(abstract(new_state()))
        assert about["note"] == "step 3"
        chex.assert_trees_all_equal(state, states[3])
        chex.assert_trees_all_equal(checkpoints.restore(2, jax.device_get(new_state()))[0], states[2])


def test_restore_params_prefers_the_moving_average(tmp_path):
    state = new_state(ema=True)
    state = dataclasses.replace(state, ema_params=jax.tree.map(lambda x: x + 1, state.params))
    with training.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state, {})
        chex.assert_trees_all_equal(checkpoints.restore_params(3, abstract(state.params)), state.ema_params)
        checkpoints.save(4, state.params, {})
        with pytest.raises(training.OtherModelError, match="params/bias is missing in the checkpoint"):
            checkpoints.restore_params(4, state.params)
        with metadata(tmp_path, 3) as about:
            about["checksums"][".ema_params['kernel']"][0] ^= 1
        with pytest.raises(training.CheckpointError, match=r"wrong checksum of \.ema_params\['kernel'\]"):
            checkpoints.restore_params(3, state.params)


def test_average(tmp_path):
    states = saved(tmp_path)
    with training.Checkpoints(tmp_path) as checkpoints:
        mean, same = (checkpoints.average(abstract(new_state()), steps) for steps in ([1, 3], [1] * 5))
    chex.assert_trees_all_equal(same, states[1].params)  # bit for bit, as what is frozen must stay
    np.testing.assert_allclose(mean["kernel"], states[2].params["kernel"], rtol=1e-6)


def test_leaves_that_are_not_requested_are_not_read(tmp_path):
    """Damage to the optimizer's moments matters for training only."""
    states = saved(tmp_path, steps=(1,))
    whole = abstract(new_state())
    part = dataclasses.replace(whole, optimizer=jax.tree.map(lambda _: ..., whole.optimizer))
    with metadata(tmp_path, 1) as about:
        (moment,) = [path for path in about["checksums"] if "mu" in path and "kernel" in path]
        about["checksums"][moment][0] ^= 1
    with training.Checkpoints(tmp_path) as checkpoints:
        found, _ = checkpoints.restore(1, part)
        chex.assert_trees_all_equal(found.params, states[1].params)
        assert all(leaf is ... for leaf in jax.tree.leaves(found.optimizer))
        with pytest.raises(training.CheckpointError, match=r"wrong checksum of \.optimizer.*mu.*kernel"):
            checkpoints.restore(1, whole)
        other = dataclasses.replace(part, optimizer={"momentum": ...})
        with pytest.raises(training.CheckpointError, match="another optimizer"):
            checkpoints.restore(1, other)


@pytest.mark.parametrize("damage", first(["flip", "truncate", "delete", "empty step"], "flip", "empty step"))
def test_damage_falls_back_to_the_step_before(tmp_path, damage, caplog):
    states = saved(tmp_path)
    newest = tmp_path / "3"
    if damage == "empty step":
        shutil.rmtree(newest)
        newest.mkdir()
    for path in data_files(newest):  # Orbax may keep a value in more than one of them
        if damage == "flip":
            for where in np.linspace(0, 0.99, 40):
                flip(path, where)
        elif damage == "truncate":
            path.write_bytes(path.read_bytes()[:-40])
        else:
            path.unlink()
    with caplog.at_level(logging.WARNING), training.Checkpoints(tmp_path) as checkpoints:
        state, about = checkpoints.restore_latest(abstract(new_state()))
    assert about["note"] == "step 2"
    chex.assert_trees_all_equal(state, states[2])
    assert "step 3" in caplog.text
    with training.Checkpoints(tmp_path) as checkpoints:  # the damaged one is out of the way of a new step 3
        assert checkpoints.steps() == [1, 2]
        checkpoints.save(3, states[3], {})
    assert (tmp_path / "damaged-3").is_dir()


READER = """
import gc, sys
import tests.conftest
from jaxformer import training
from tests.training.small import abstract, new_state
class Broken:
    def __del__(self):
        raise ValueError("of ours")
with training.Checkpoints(sys.argv[1]) as checkpoints:
    checkpoints.restore_latest(abstract(new_state()))
gc.collect()
Broken()
"""


@pytest.mark.full
def test_damage_gives_a_one_line_error(tmp_path):
    """Orbax leaves reads in progress, and each would print a traceback; other tracebacks are still printed."""
    saved(tmp_path, steps=(1, 2))
    for path in data_files(tmp_path / "2"):
        path.write_bytes(path.read_bytes()[:-40])
    done = subprocess.run([sys.executable, "-c", READER, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    warning, *rest = done.stderr.splitlines()
    assert "step 2" in warning
    assert "trying the step before" in warning
    assert "Broken.__del__" in rest[0]
    assert rest[-1] == "ValueError: of ours"
    assert done.stderr.count("Traceback") == 1, done.stderr


def test_a_changed_number_in_the_metadata_is_damage(tmp_path):
    """A digest finds it: a best score off by a bit would affect patience."""
    states = saved(tmp_path)
    (path,) = [p for p in (tmp_path / "3" / "about").iterdir() if b"step 3" in p.read_bytes()]
    path.write_bytes(path.read_bytes().replace(b"step 3", b"step 2"))
    with training.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(training.CheckpointError, match="wrong digest"):
            checkpoints.restore(3, abstract(new_state()))
        chex.assert_trees_all_equal(checkpoints.restore_latest(abstract(new_state()))[0], states[2])


def test_a_wrong_target_renames_no_checkpoint(tmp_path):
    """The fault is the reader's: every step still exists for the right one."""
    states = saved(tmp_path)
    target = abstract(new_state())
    wrong = dataclasses.replace(target, params={"kernel": target.params["kernel"]})
    with training.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(training.CheckpointError, match=r"step 3 in .*another model"):
            checkpoints.restore_latest(wrong)
        assert checkpoints.steps() == [1, 2, 3]
        chex.assert_trees_all_equal(checkpoints.restore_latest(target)[0], states[3])


def test_a_step_of_another_script_is_not_damage(tmp_path):
    """Newer steps have a moving average: a reader without one gets an error, and no older step."""
    old = saved(tmp_path, steps=(1,))[1]
    new = new_state(ema=True)
    with training.Checkpoints(tmp_path) as checkpoints:
        for step in (2, 3):
            checkpoints.save(step, new, {})
    for path in data_files(tmp_path / "3"):
        path.write_bytes(b"")
    with training.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(training.OtherModelError, match=r"step 3 in .*ema_params.* and missing in this model"):
            checkpoints.restore_latest(abstract(old))
        assert checkpoints.steps() == [1, 2, 3]
        chex.assert_trees_all_equal(checkpoints.restore(1, abstract(old))[0], old)
        chex.assert_trees_all_equal(checkpoints.restore_latest(abstract(new))[0], new)
        assert checkpoints.steps() == [1, 2]


@pytest.mark.parametrize("signed", [True, False])
def test_files_that_contradict_their_step(tmp_path, signed, monkeypatch):
    """Orbax's files hold another tree: damage, if the metadata has the shapes; older versions do not save them."""
    states = saved(tmp_path)
    if not signed:
        with metadata(tmp_path, 3) as about:
            del about["kinds"]
    with training.Checkpoints(tmp_path) as checkpoints:
        manager, real = checkpoints._manager, checkpoints._manager.item_metadata
        found = lambda step: {"state": dataclasses.replace(states[3], params={})} if step == 3 else real(step)
        monkeypatch.setattr(manager, "item_metadata", found)
        if signed:
            chex.assert_trees_all_equal(checkpoints.restore_latest(abstract(new_state()))[0], states[2])
            assert (tmp_path / "damaged-3").is_dir()
        else:
            with pytest.raises(training.OtherModelError, match="step 3"):
                checkpoints.restore_latest(abstract(new_state()))


def test_reading_leaves_the_save_of_another_process_alone(tmp_path):
    saved(tmp_path)
    leftover = tmp_path / "9.orbax-checkpoint-tmp"
    leftover.mkdir()
    with training.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [1, 2, 3]
        checkpoints.restore_latest(abstract(new_state()))
        assert leftover.exists()
        checkpoints.save(4, new_state(), {})  # a writer clears away what a killed one left
        assert not leftover.exists()


def test_saving_during_training(tmp_path):
    """Steps donate the state's memory while it is being written: the saved state is the original one."""
    step = training.make_step(loss, OPTIMIZER)
    big = lambda key: {"kernel": jax.random.normal(key, (4, 3)), "bias": jnp.zeros(3), "more": jnp.ones((500, 1000))}
    state = training.create(big, OPTIMIZER, jax.random.key(0))
    target = abstract(state)
    with training.Checkpoints(tmp_path, keep_last=9) as checkpoints:
        copies = {}
        for number in range(1, 9):
            state, _ = step(state, batch(number))
            if number % 4 == 0:
                copies[number] = jax.tree.map(lambda x: np.array(x, copy=True), state)
                checkpoints.save(number, state, {})
        for number, copy in copies.items():
            chex.assert_trees_all_equal(checkpoints.restore(number, target)[0], copy)


def test_restores_onto_another_mesh(tmp_path):
    """Saved by one device, read by eight, and back: the same bits and checksums, the requested placement."""
    rows = jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()), ("data",)), jax.sharding.PartitionSpec("data")
    )
    state = {"x": jax.random.normal(jax.random.key(0), (16, 5))}
    split = {"x": jax.ShapeDtypeStruct((16, 5), jnp.float32, sharding=rows)}
    with training.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        wide, _ = checkpoints.restore(1, split)
        assert wide["x"].sharding == rows
        checkpoints.save(2, wide, {})
        chex.assert_trees_all_equal(checkpoints.restore(2, abstract(state))[0], state)


def test_the_best_step_ignores_scores_that_are_not_numbers(tmp_path):
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        for step, score in enumerate((None, np.float32(2), jnp.float32(3), float("nan"), None), start=1):
            checkpoints.save(jnp.int32(step), {"x": jnp.ones(2)}, {}, score=score)
        checkpoints.wait()
        assert (checkpoints.best_step(), checkpoints.steps()) == (2, [2, 5])


def test_a_step_whose_score_cannot_be_read_is_kept(tmp_path, monkeypatch, caplog):
    """It may be the best: a file system that fails for a moment may not cost the parameters that a run was for."""
    states = {step: {"x": jnp.full(2, float(step))} for step in range(1, 6)}
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        for step, score in ((1, 1.0), (2, 2.0)):
            checkpoints.save(step, states[step], {}, score=score)
    about, failing = training.Checkpoints.about, {1}

    def read(self, step):
        if step in failing:
            raise OSError(116, "Stale file handle")
        return about(self, step)

    monkeypatch.setattr(training.Checkpoints, "about", read)
    with training.Checkpoints(tmp_path, keep_last=1) as checkpoints:
        for step in (3, 4):
            checkpoints.save(step, states[step], {}, score=3.0)
        checkpoints.wait()
        assert (checkpoints.best_step(), checkpoints.steps()) == (2, [1, 2, 4])
        assert caplog.text.count("Stale file handle") == 1
        failing.clear()
        checkpoints.save(5, states[5], {}, score=4.0)
        checkpoints.wait()
        assert (checkpoints.best_step(), checkpoints.steps()) == (1, [1, 5])


def test_metadata_that_save_writes_itself_is_refused(tmp_path):
    """With the checksums or the digest of another step, as `restore` returns them, the step would be damaged."""
    with pytest.raises(ValueError, match="keep_last must be at least 1, got 0"):
        training.Checkpoints(tmp_path, keep_last=0)
    with training.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, new_state(), {})
        with pytest.raises(ValueError, match="writes checksums, digest, kinds, score, step: leave them out"):
            checkpoints.save(2, *checkpoints.restore_latest(new_state()))


def test_a_renamed_step_that_is_still_listed(tmp_path, monkeypatch):
    """Process 0 has renamed it; the list of this process is old, as a network file system may keep it, for a moment."""
    states = saved(tmp_path, steps=(1, 2))
    flip(tmp_path / "2" / "about" / "metadata", 0.5)
    monkeypatch.setattr(cluster, "unequal_processes", lambda text: ["process 1"] * (text != "[1]"))
    with training.Checkpoints(tmp_path) as checkpoints:
        reload, late = checkpoints._manager.reload, [None] * 2
        monkeypatch.setattr(checkpoints._manager, "reload", lambda: late.pop() if late else reload())
        assert checkpoints.restore_latest(abstract(new_state()))[1]["step"] == 1
        checkpoints.save(2, states[2], {})


def test_all_damaged(tmp_path):
    saved(tmp_path, steps=(1,))
    for path in data_files(tmp_path / "1"):
        path.write_bytes(b"")
    with (
        training.Checkpoints(tmp_path) as checkpoints,
        pytest.raises(training.CheckpointError, match=r"none of the steps \[1\]"),
    ):
        checkpoints.restore_latest(abstract(new_state()))


@pytest.mark.faults
def test_flipped_bits_in_the_arrays(tmp_path):
    """Orbax itself loads them without an error; here every one is noticed."""
    values = {step: {"x": jax.random.normal(jax.random.key(step), (200, 200))} for step in (1, 2)}
    with training.Checkpoints(tmp_path / "good") as checkpoints:
        for step, state in values.items():
            checkpoints.save(step, state, {})
    random, caught = np.random.default_rng(0), 0
    for trial in range(20):
        folder = tmp_path / f"trial{trial}"
        shutil.copytree(tmp_path / "good", folder)
        where = random.random()
        for path in data_files(folder / "2"):
            flip(path, where)
        with training.Checkpoints(folder) as checkpoints:
            state, about = checkpoints.restore_latest(abstract(values[1]))
        # A flip between values may be harmless; a wrong value must never come back.
        chex.assert_trees_all_equal(state, values[about["step"]])
        caught += about["step"] == 1
    assert caught >= 18


PROGRAM = """
import sys, jax, jax.numpy as jnp
from jaxformer import training
with training.Checkpoints(sys.argv[1], keep_last=3, timeout=20) as checkpoints:
    for step in range(1, 400):
        checkpoints.save(step, {"x": step + jax.random.uniform(jax.random.key(0), (400, 400))}, {})
        print(step, flush=True)
"""


@pytest.mark.faults
def test_killed_while_saving(tmp_path):
    target = {
        "x": jax.ShapeDtypeStruct((400, 400), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    }
    for trial in range(6):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / str(trial))], stdout=subprocess.PIPE)
        for _ in range(3):
            process.stdout.readline()
        time.sleep(0.013 * trial)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with training.Checkpoints(tmp_path / str(trial)) as checkpoints:
            state, about = checkpoints.restore_latest(target)
        assert about["step"] >= 1
        assert (
            np.asarray(state["x"]) == np.asarray(about["step"] + jax.random.uniform(jax.random.key(0), (400, 400)))
        ).all()


# As if other programs had taken all free space between the check and the write.
TOO_LATE = """
import shutil
usage = shutil.disk_usage
shutil.disk_usage = lambda path: usage(path)._replace(free=2**40)
"""


@pytest.mark.faults
@pytest.mark.parametrize(("before", "message"), [("", "MiB free, and the save takes 0.6"), (TOO_LATE, "")])
def test_full_disk_is_an_error_within_a_minute(tmp_path, before, message):
    """On a file system of a megabyte, if one can be made; otherwise a hang would run into the timeout."""
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode
    ):
        pytest.skip("cannot mount a small file system: not root, or not allowed")
    try:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", before + PROGRAM, str(folder / "c")], capture_output=True, text=True, timeout=90
        )
        assert done.returncode != 0
        assert "CheckpointError: cannot save" in done.stderr
        assert message in done.stderr
        assert time.monotonic() - began < 60
        with training.Checkpoints(folder / "c") as checkpoints:  # what was saved before is still good
            target = {"x": jax.ShapeDtypeStruct((400, 400), jnp.float32)}
            state, about = checkpoints.restore_latest(target)
        assert state["x"].shape == (400, 400)
        assert about["step"] >= 1
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(training.CheckpointError, match=r"cannot open .*file/c"):
        training.Checkpoints(tmp_path / "file" / "c")
    with pytest.raises(training.CheckpointError, match=r"cannot open .*file for checkpoints: it is not a folder"):
        training.Checkpoints(tmp_path / "file")


@pytest.mark.faults
def test_read_only_directory(tmp_path):
    """Reading works, writing is a clear error after a short time."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", folder]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system: not root, or not allowed")
    try:
        states = saved(folder / "c")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        began = time.monotonic()
        with pytest.raises(training.CheckpointError, match="Read-only"):
            training.Checkpoints(folder / "new")
        checkpoints = training.Checkpoints(folder / "c")
        chex.assert_trees_all_equal(checkpoints.restore_latest(abstract(new_state()))[0], states[3])

        def save():
            checkpoints.save(4, states[3], {})
            checkpoints.wait()

        with pytest.raises(training.CheckpointError, match="cannot save"):
            save()
        assert time.monotonic() - began < 60
    finally:
        subprocess.run(["umount", folder], check=True)
