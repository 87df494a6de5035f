"""Warm starts take matching parameters, and report why others are not taken."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import models, pure, training
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.tasks import registry, restore, rundir, warm_start
from tests.modules.small import drawn, quick
from tests.selection import first
from tests.tasks.small import small


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


TABLE = "embeddings/positions/table"
PART = {"language_model": "decoder/", "masked_language_model": "encoder/", "classification": "encoder/"}


def with_positions(name, number, **settings):
    """A tiny model of a task with this number of learned positions, two of them for padding."""
    layers = dict.fromkeys(["num_encoder_layers", "num_decoder_layers"] if name == "translation" else ["num_layers"], 1)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "positions": choices.Learned(2), **layers}
    config = registry.configure(name, model=sizes | {"max_positions": number}, **settings)
    return config, registry.get(name).network(config, (24, 2) if name == "classification" else 24).net


@pytest.mark.parametrize("name", first(["translation", *PART], "language_model"))
def test_a_model_with_more_positions_starts_with_the_results_of_the_other_one(name):
    """Bit for bit, for inputs that the other one takes."""
    source, short = with_positions(name, 6)
    config, net = with_positions(name, 11)
    old = drawn(short.shapes)
    params, about = warm_start.merge(drawn(net.shapes, 0.1), old, warm_start.resizer(config, source))
    assert about.new == {}
    how = "6 positions there and 11 here: extend, with new rows drawn at random"
    assert [line for line in about.report() if "resized" in line] == [
        f"  resized: {part}{TABLE} ({how})"
        for part in (["decoder/", "encoder/"] if name == "translation" else [PART[name]])
    ]
    tokens = [jnp.array([[4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4]])] * (2 if name == "translation" else 1)
    found, expected = quick(net.apply)(params, *tokens), quick(short.apply)(old, *tokens)
    assert found.tolist() == expected.tolist()
    assert warm_start.differences(config, source) == []


@pytest.mark.parametrize(
    ("method", "number", "rows"),
    [
        ("copy", 5, [9, 8, 0, 2, 4, 0, 2]),
        ("interpolate", 5, [9, 8, 0, 1, 2, 3, 4]),
        ("interpolate", 2, [9, 8, 0, 4]),
        ("extend", 2, [9, 8, 0, 2]),
    ],
)
def test_a_table_of_positions_is_resized_after_its_rows_for_padding(method, number, rows):
    source = with_positions("language_model", 3)[0]
    config = with_positions("language_model", number, init_from="run", init_positions=method)[0]
    table = np.array([9.0, 8, 0, 2, 4])[:, None] * np.ones(8)
    made, how = warm_start.resizer(config, source)(TABLE, jnp.zeros((number + 2, 8)), table)
    assert made[:, 0].tolist() == rows
    assert how == f"3 positions there and {number} here: {'truncate' if method == 'extend' else method}"


def test_only_tables_of_positions_are_resized():
    """Not a table whose rows stand for other positions."""
    config, source = (with_positions("language_model", number)[0] for number in (5, 3))
    other = changed(source, {"model": {"positions": {"offset": 0}, "max_positions": 5}})
    tables = jnp.zeros((7, 8)), np.zeros((5, 8))
    assert warm_start.resizer(config, source)(TABLE, *tables) is not None
    assert warm_start.resizer(config, source)("output/kernel", *tables) is None
    assert warm_start.resizer(config, other)(TABLE, *tables) is None
    images = [registry.configure("vision", model={"image_size": size}) for size in ((8, 16), (8, 8))]
    assert warm_start.resizer(images[0], source)(TABLE, *tables) is None


def test_a_grid_of_patches_is_interpolated_in_both_directions():
    """Equal to `with_image_size`; the class token keeps its row. Another patch size, or no class token, is refused."""
    sizes = {"patch_size": 4, "d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8, "num_classes": 2}
    source, config = (
        registry.configure("vision", model={"kind": "transformer", "image_size": size} | sizes)
        for size in ((8, 8), (12, 8))
    )
    params = pure(models.VisionTransformer, source.model).init(jax.random.key(0))
    expected = models.with_image_size(source.model, params, (12, 8))[1]["encoder"]["embeddings"]["positions"]["table"]
    table = params["encoder"]["embeddings"]["positions"]["table"]
    made, how = warm_start.resizer(config, source)(f"encoder/{TABLE}", jnp.zeros((7, 8)), table)
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    np.testing.assert_array_equal(made[0], table[0])
    assert how == "2 x 2 patches there and 3 x 2 here: bicubic"
    for change in ({"patch_size": 2}, {"pooling": "mean"}):
        other = changed(config, {"model": change})
        assert warm_start.resizer(other, source)(f"encoder/{TABLE}", jnp.zeros((7, 8)), table) is None


def test_resized_positions_without_an_effect_are_refused():
    config = registry.configure("translation", init_positions="copy", init_from="run")
    with pytest.raises(ConfigError, match="init_positions copy has no effect: run has no table of positions"):
        warm_start.check(config, warm_start.WarmStart(("a",), {}, ()))


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


def test_a_training_that_ends_in_its_warm_up_is_reported(tmp_path):
    """With the warm-up of the paper, 200 steps reach a twentieth of the learning rate, and seem to learn nothing."""
    said, setup = [], SimpleNamespace(new_state=lambda: None, frozen=None)
    for steps in (200, 4000):
        config = changed(registry.resolve("translation:base"), {"train": {"steps": steps}})
        warm_start.first_state(config, setup, tmp_path, said.append)
    assert said == ["WARNING: train.steps ends in the warm-up of 4,000 steps, below the peak of the learning rate"]


def test_frozen_parameters_without_a_warm_start_are_reported(tmp_path):
    """With one line; without frozen parameters, with no line."""
    lines, frozen = [], {"encoder": dict.fromkeys("abcd", True), "output": False}
    for tree in (frozen, None):
        setup = SimpleNamespace(frozen=tree, new_state=lambda: "state")
        assert warm_start.first_state(small(), setup, tmp_path, lines.append) == "state"
    assert lines == [
        "WARNING: 4 parameters that tune.frozen names keep their initial values, because init_from gives no others: "
        "encoder/a, encoder/b, encoder/c, ..."
    ]


def test_adapters_beside_trained_parameters_are_reported(tmp_path):
    """LoRA freezes nothing by itself; without a pattern, a run trains everything."""
    matrix = jax.ShapeDtypeStruct((2, 2), "float32")
    shapes = {"decoder": {"a": matrix, "b": jax.ShapeDtypeStruct((2,), "float32")}, "lora": {"a": matrix}}
    network = SimpleNamespace(net=SimpleNamespace(shapes=shapes))
    a, b = ({"decoder": {"a": x == "a", "b": x == "b"}, "lora": {"a": False}} for x in "ab")
    for rank, frozen, number in ((2, None, 1), (2, b, 1), (2, a, 0), (0, None, 0)):
        lines = []
        trainer = SimpleNamespace(frozen=frozen, new_state=lambda: "state", network=network)
        warm_start.first_state(
            changed(small(), {"tune": {"adapters": {"kind": "lora", "rank": rank} if rank else None}}),
            trainer,
            tmp_path,
            lines.append,
        )
        warnings = [line for line in lines if line.startswith("WARNING: tune.adapters")]
        assert len(warnings) == number
        assert all("--tune.frozen 'decoder/*'" in line for line in warnings)


def test_a_table_of_positions_of_another_length_is_extended(tmp_path, monkeypatch):
    """It started at random, with a line that named only its shape."""
    source = small()
    config = changed(source, {"model": {"max_positions": 12}, "init_from": str(tmp_path / "source")})
    rundir.claim(tmp_path / "source", "translation", source, ())
    tables = [{"encoder": {"embeddings": {"positions": {"table": jax.numpy.full((n, 16), float(n))}}}} for n in (8, 12)]
    monkeypatch.setattr(restore, "load_params", lambda *_: (tables[0], (1,)))
    state = training.TrainState(0, tables[1], (), jax.random.key(0), None)
    lines, setup = [], SimpleNamespace(new_state=lambda: state, frozen=None, config=config)
    params = warm_start.first_state(config, setup, tmp_path, lines.append).params
    assert (params["encoder"]["embeddings"]["positions"]["table"][:8] == 8).all()
    assert any(line.startswith("  resized: encoder/embeddings/positions/table (8 positions there") for line in lines)
    assert json.loads((tmp_path / "init.json").read_text())["resized"].keys() == {"encoder/embeddings/positions/table"}
