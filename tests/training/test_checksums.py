"""Checksums notice every flipped bit, on every mesh."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.training.checksums import checksums, is_intact, signed


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
