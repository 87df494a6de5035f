"""Checkpoints: what was saved comes back bit for bit, what is damaged is noticed and passed over."""

import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import training
from jaxformer.training.checkpoint import checksums
from tests.training.test_loop import abstract
from tests.training.test_step import equal, new_state

# Reading a damaged file leaves coroutines of Orbax's behind, whose event loop is gone when they fail.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def saved(folder, steps=(1, 2, 3)):
    states = {}
    with training.Checkpoints(folder) as checkpoints:
        for step in steps:
            states[step] = dataclasses.replace(new_state(), step=jnp.int32(step))
            states[step] = dataclasses.replace(
                states[step],
                params=jax.tree.map(lambda x: x + step, states[step].params),  # noqa: B023
            )
            checkpoints.save(step, states[step], {"note": f"step {step}"})
    return states


def test_comes_back(tmp_path):
    states = saved(tmp_path)
    with training.Checkpoints(tmp_path) as checkpoints:
        state, about = checkpoints.restore_latest(abstract(new_state()))
        assert about["note"] == "step 3"
        assert equal(state, states[3])
        assert equal(checkpoints.restore(2, abstract(new_state()))[0], states[2])


def test_nothing_there(tmp_path):
    with training.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(abstract(new_state())) is None


def test_another_model_is_refused(tmp_path):
    saved(tmp_path, steps=(1,))
    target = abstract(new_state())
    for change, message in (
        ({"kernel": jax.ShapeDtypeStruct((5, 3), jnp.float32)}, r"kernel is \(\(4, 3\), 'float32'\) there"),
        ({"kernel": jax.ShapeDtypeStruct((4, 3), jnp.bfloat16)}, "'bfloat16'"),
        ({"extra": jax.ShapeDtypeStruct((4,), jnp.float32)}, "extra is missing there"),
    ):
        with training.Checkpoints(tmp_path) as checkpoints:
            wrong = dataclasses.replace(target, params={**target.params, **change})
            with pytest.raises(training.CheckpointError, match=message):
                checkpoints.restore(1, wrong)


def test_average(tmp_path):
    states = saved(tmp_path)
    with training.Checkpoints(tmp_path) as checkpoints:
        mean = checkpoints.average(abstract(new_state()), [1, 3])
    np.testing.assert_allclose(mean["kernel"], states[2].params["kernel"], rtol=1e-6)


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


def test_checksums_do_not_depend_on_the_mesh():
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    tree = {"a": jax.random.normal(jax.random.key(0), (8, 16))}
    split = jax.device_put(tree, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y")))
    assert (jax.device_get(checksums(tree))["['a']"] == jax.device_get(checksums(split))["['a']"]).all()


def flip(path, where):
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 0x10
    path.write_bytes(data)


def data_files(step):
    return [p for p in (step / "state").rglob("*") if p.is_file() and "/d/" in str(p)]


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty step"])
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
    assert equal(state, states[2])
    assert "step 3" in caplog.text


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
    """Stock Orbax loads them without a word; here every one is noticed."""
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
        assert equal(state, values[about["step"]])
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


@pytest.mark.faults
def test_full_disk_is_an_error_within_a_minute(tmp_path):
    """On a file system of a megabyte, where it can be made; a hang would run into the timeout."""
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
            [sys.executable, "-c", PROGRAM, str(folder / "c")], capture_output=True, text=True, timeout=90
        )
        assert done.returncode != 0
        assert "CheckpointError" in done.stderr
        assert time.monotonic() - began < 60
    finally:
        subprocess.run(["umount", folder], check=True)


def test_read_only_directory(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises((OSError, training.CheckpointError)):
        training.Checkpoints(tmp_path / "c")
