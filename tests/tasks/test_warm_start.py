"""Warm starts take matching parameters, and report why others are not taken."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import changed
from jaxformer.tasks import registry, warm_start


def test_only_equal_shapes_of_equal_names_are_taken():
    initial = {"a": {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}, "new": jnp.full(4, 7.0)}
    source = {"a": {"w": np.ones((2, 3), np.float16), "b": np.ones(5)}, "old": np.ones(1)}
    params, about = warm_start.merge(initial, source)
    assert params["a"]["w"].tolist() == [[1.0] * 3] * 2
    assert params["a"]["w"].dtype == jnp.float32
    assert params["a"]["b"].tolist() == [0.0] * 3
    assert params["new"].tolist() == [7.0] * 4
    assert about.taken == ("a/w",)
    assert about.new == {"a/b": "its shape is [3], in the other run [5]", "new": "the other run has none"}
    assert about.unused == ("old",)
    assert about.report() == [
        "1 parameters taken, 2 new, 1 of the other run unused",
        "  new: a/b (its shape is [3], in the other run [5])",
        "  new: new (the other run has none)",
        "  unused: old",
    ]


def test_frozen_parameters_that_were_never_learned():
    """They keep their initial values forever; adapters with one frozen half do not count."""
    frozen = {"a": {"b": True, "w": True}, "output": False, "lora": {"a": {"w": {"a": True, "b": False}}}}
    assert warm_start.never_learned(frozen, None) == ["a/b", "a/w"]
    about = warm_start.WarmStart(("a/w",), dict.fromkeys(("a/b", "output", "lora/a/w/a"), "the other run has none"), ())
    assert warm_start.never_learned(frozen, about) == ["a/b"]
    whole = warm_start.WarmStart(("a/b", "a/w"), {"output": "the other run has none"}, ())
    assert warm_start.never_learned(frozen, whole) == []


def test_settings_that_no_shape_shows_are_reported():
    """Also those of a nested network; dropout and the number of classes are free, and other models are not compared."""
    vision = registry.configure("vision", model={"norm_position": "pre", "patch_size": 4})
    other = changed(vision, {"model": {"norm_position": "post", "patch_size": 8, "dropout": 0.5, "num_classes": 7}})
    (line,) = warm_start.differences(vision, other)
    assert line.endswith(": norm_position is post there and pre here, patch_size is 8 there and 4 here")
    assert warm_start.differences(vision, changed(vision, {"model": {"dropout": 0.5}})) == []
    captioning = registry.configure("captioning")
    (line,) = warm_start.differences(captioning, changed(captioning, {"model": {"image": {"num_blocks": 3}}}))
    assert "image.num_blocks is 3 there and 2 here" in line
    assert warm_start.differences(vision, captioning) == []


def test_parameters_stay_where_they_were_placed():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    params, _ = warm_start.merge({"w": jax.device_put(jnp.zeros(16), place)}, {"w": jnp.arange(16.0)})
    assert params["w"].sharding == place
    assert params["w"].tolist() == list(range(16))
