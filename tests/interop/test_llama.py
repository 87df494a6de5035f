"""Llama and its relatives: the names and shapes of their files, and rotary positions in both forms."""

import json

import chex
import pytest

from jaxformer import interop, models, pure
from jaxformer.models import choices, families
from jaxformer.models.choices import Rotary
from tests.interop.small import STACK, arrays, check_shapes, drawn, edited, save

D, F, V = 8, 12, 9


def names(queries, keys, biases, *, tied=False, head_norms=0):
    """The tensors of a model whose query heads and key heads together have these widths."""
    found = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,)}
    found |= {} if tied else {"lm_head.weight": (V, D)}
    for i in range(2):
        layer = f"model.layers.{i}"
        for name, width in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{layer}.self_attn.{name}_proj.weight"] = (width, D)
            found |= {f"{layer}.self_attn.{name}_proj.bias": (width,)} if biases else {}
        found[f"{layer}.self_attn.o_proj.weight"] = (D, queries)
        found |= {f"{layer}.self_attn.{x}_norm.weight": (head_norms,) for x in "qk" if head_norms}
        found |= {f"{layer}.{x}_layernorm.weight": (D,) for x in ("input", "post_attention")}
        found |= {f"{layer}.mlp.{x}_proj.weight": (F, D) for x in ("gate", "up")}
        found[f"{layer}.mlp.down_proj.weight"] = (D, F)
    return found


NAMES = {
    "llama": names(8, 4, False),
    "mistral": names(12, 12, False),
    "qwen2": names(8, 8, True),
    "qwen3": names(8, 8, False, tied=True, head_norms=4),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(tmp_path, name):
    check_shapes(tmp_path / "model", name, NAMES[name])


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0}
ROTARY = [
    ({"rope_theta": 500_000.0}, Rotary(500_000.0)),
    ({"rope_theta": 1e6, "rope_scaling": None}, Rotary(1e6)),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, Rotary(scaling=choices.LinearScaling(2.0))),
    (
        {"rope_theta": 500_000.0, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192}},
        Rotary(500_000.0, scaling=choices.Llama3Scaling(8.0, 8192)),
    ),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, Rotary(5.0)),
    (  # outside of the object; it has priority in transformers 5
        {"rope_parameters": LLAMA3, "original_max_position_embeddings": 16, "max_position_embeddings": 64},
        Rotary(scaling=choices.Llama3Scaling(8.0, 16)),
    ),
    (  # the published Qwen, whose amplitude follows from the factor
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
        Rotary(scaling=choices.YaRNScaling(4.0, 16)),
    ),
    (  # a factor from the two lengths
        {"rope_parameters": YARN | {"attention_factor": 1.0693147180559945}, "max_position_embeddings": 32},
        Rotary(scaling=choices.YaRNScaling(2.0, 16)),
    ),
    ({"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 1.0}}, Rotary(5.0)),
    (  # as transformers 5 does
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        Rotary(scaling=choices.LinearScaling(2.0)),
    ),
]


@pytest.mark.parametrize(("settings", "rotary"), ROTARY)
def test_rotary_positions(tmp_path, settings, rotary):
    save(tmp_path / "model", "llama")
    cleared = dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters"))
    edited(tmp_path / "model", settings=cleared | settings)
    found = interop.load_pretrained(tmp_path / "model")
    assert found.net.config.positions == rotary
    interop.save_pretrained(tmp_path / "again", found.net, found.params, family="llama")
    assert interop.load_pretrained(tmp_path / "again").net.config.positions == rotary


FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWS = [
    ("mistral", {"sliding_window": 8}, 8),
    ("mistral", {"sliding_window": None}, None),
    ("mistral", {"sliding_window": None, "layer_types": [FULL, FULL]}, None),
    ("qwen2", {"use_sliding_window": True}, None),  # the first 28 layers have none
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, 4096),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 8}, None),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": None}, None),
    ("qwen2", {"use_sliding_window": False, "max_window_layers": 0, "sliding_window": 8}, None),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "layer_types": [SLIDING, SLIDING]}, 8),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "layer_types": [FULL, FULL]}, None),
    ("qwen3", {"sliding_window": 8, "max_window_layers": 0}, None),
]


@pytest.mark.parametrize(("name", "settings", "window"), WINDOWS)
def test_windows_of_attention(tmp_path, name, settings, window):
    save(tmp_path / "model", name)
    edited(tmp_path / "model", settings=settings)
    found = interop.load_pretrained(tmp_path / "model")
    assert found.net.config.attention_window == window
    for given in (None, found.settings):
        folder = tmp_path / f"again {given is None}"
        interop.save_pretrained(folder, found.net, found.params, family=name, settings=given)
        assert interop.load_pretrained(folder).net.config.attention_window == window


def test_mistral_has_a_window_by_default(tmp_path):
    save(tmp_path / "model", "mistral")
    path = tmp_path / "model" / "config.json"
    settings = json.loads(path.read_text())
    assert settings.pop("sliding_window") is None
    path.write_text(json.dumps(settings))
    assert interop.load_pretrained(tmp_path / "model").net.config.attention_window == 4096


def test_feed_forward_biases(tmp_path):
    net = pure(models.LanguageModel, families.llama(V, **STACK, feed_forward=choices.Gated()))
    params = drawn(net)
    interop.save_pretrained(tmp_path / "model", net, params, family="llama")
    shapes = {name: x.shape for name, x in arrays(tmp_path / "model").items() if "mlp" in name and "bias" in name}
    assert shapes == {
        f"model.layers.{i}.mlp.{name}_proj.bias": (width,)
        for i in range(2)
        for name, width in (("gate", F), ("up", F), ("down", D))
    }
    found = interop.load_pretrained(tmp_path / "model")
    assert found.settings["mlp_bias"] is True
    chex.assert_trees_all_equal(found.params, params)


def test_older_settings_do_not_contradict_the_model_that_is_written(tmp_path):
    save(tmp_path / "model", "llama")
    edited(tmp_path / "model", settings={"rope_scaling": LLAMA3, "rope_theta": 5.0, "rope_parameters": None})
    found = interop.load_pretrained(tmp_path / "model", positions=Rotary(7.0))
    interop.save_pretrained(tmp_path / "again", found.net, found.params, family="llama", settings=found.settings)
    again = interop.load_pretrained(tmp_path / "again")
    assert again.net.config.positions == Rotary(7.0)
    assert (again.settings["rope_scaling"], again.settings["rope_theta"]) == (None, 7.0)


def test_a_missing_trained_length_is_the_number_of_positions(tmp_path):
    """As in transformers 5; it was 8192."""
    save(tmp_path / "model", "llama")
    edited(tmp_path / "model", settings={"rope_parameters": LLAMA3, "max_position_embeddings": 64})
    assert interop.load_pretrained(tmp_path / "model").net.config.positions.scaling.trained_length == 64
