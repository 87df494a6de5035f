"""Folders of Hugging Face: reading inverts writing; a folder that does not fit its settings is refused.


`tests/parity/test_families.py` compares with Hugging Face's own models.
"""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import interop, models, pure, sharding
from jaxformer.errors import ConfigError, DataError
from jaxformer.interop import tensors
from jaxformer.models import choices
from tests.interop.small import NETS, drawn, edited, save


@pytest.mark.parametrize("name", NETS)
def test_load_inverts_save(tmp_path, name):
    net, params = save(tmp_path / "model", name, settings={"eos_token_id": 2})
    found = interop.load_pretrained(tmp_path / "model")
    chex.assert_trees_all_equal(found.params, params)
    assert found.net.model is net.model
    assert interop.pretrained.effective(found.net.config) == interop.pretrained.effective(net.config)
    assert found.family == name.partition(" ")[0]
    assert found.settings["eos_token_id"] == 2
    assert found.unused == ()


def test_shards_and_no_prefix(tmp_path):
    """A base model's file has no prefix; here in shards."""
    _, params = save(tmp_path / "model", "gpt2", shard_bytes=2000)
    names = json.loads((tmp_path / "model" / tensors.INDEX).read_text())["weight_map"]
    assert all(name.startswith("transformer.") for name in names)
    with tensors.Tensors(tmp_path / "model") as found:
        bare = {name.removeprefix("transformer."): found.read(name) for name in found.shapes}
    (tmp_path / "bare").mkdir()
    safetensors.numpy.save_file(bare, tmp_path / "bare" / tensors.SINGLE)
    (tmp_path / "bare" / "config.json").write_bytes((tmp_path / "model" / "config.json").read_bytes())
    for folder in ("model", "bare"):
        chex.assert_trees_all_equal(interop.load_pretrained(tmp_path / folder).params, params)


def test_settings_that_change_no_parameter_can_be_changed(tmp_path):
    save(tmp_path / "model", "gpt2")
    found = interop.load_pretrained(tmp_path / "model", dropout=0.3, compute_dtype="bfloat16", remat=True)
    assert (found.net.config.dropout, found.net.config.compute_dtype, found.net.config.remat) == (0.3, "bfloat16", True)
    for changes, message in (
        ({"num_layers": 3}, "cannot be changed"),
        ({"layers": 3}, "layers is not a setting of a LanguageModelConfig"),
        ({"dropuot": 0.0}, "did you mean 'dropout'"),
        ({"dropout": 2.0}, "cannot be changed: dropout"),
    ):
        with pytest.raises(ConfigError, match=message):
            interop.load_pretrained(tmp_path / "model", **changes)


OTHER_NAMES = [
    ("bart", "model.shared.weight", "model.encoder.embed_tokens.weight"),
    ("bart", "model.shared.weight", "model.decoder.embed_tokens.weight"),
    ("bart", "model.shared.weight", "lm_head.weight"),
    ("t5", "shared.weight", "encoder.embed_tokens.weight"),
    ("bert masked", "cls.predictions.bias", "cls.predictions.decoder.bias"),
    ("roberta masked", "lm_head.bias", "lm_head.decoder.bias"),
]


@pytest.mark.parametrize(("name", "first", "other"), OTHER_NAMES)
def test_a_tensor_may_have_another_of_its_names(tmp_path, name, first, other):
    _, params = save(tmp_path / "model", name)
    edited(tmp_path / "model", lambda found: found.update({other: found.pop(first)}))
    chex.assert_trees_all_equal(interop.load_pretrained(tmp_path / "model").params, params)


UNUSED = [
    ("bart", ("classification_head.dense.bias", "model.decoder.version", "model.encoder.version")),
    ("gpt2", ("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias")),
    ("vit", ("pooler.dense.bias",)),
]


@pytest.mark.parametrize(("name", "others"), UNUSED)
def test_tensors_without_a_parameter_are_listed(tmp_path, name, others):
    """Masks and versions of old files, and other heads."""
    save(tmp_path / "model", name)
    edited(tmp_path / "model", lambda found: found.update({other: np.ones(1, "f4") for other in others}))
    assert interop.load_pretrained(tmp_path / "model").unused == others


REFUSED = {
    "a missing tensor": (lambda found: found.pop("transformer.wte.weight"), {}, "no tensor 'wte.weight'"),
    "one too many": (lambda found: found.update(more=np.ones(1, "f4")), {}, "a tensor 'more'"),
    "a bias too many": (
        lambda found: found.update({"transformer.h.0.ln_3.bias": np.ones(1, "f4")}),
        {},
        "does not imply",
    ),
    "a shape": (
        lambda found: found.update({"transformer.wte.weight": np.ones((8, 9), "f4")}),
        {},
        r"has shape \(8, 9\)",
    ),
    "integers": (lambda found: found.update({"transformer.wte.weight": np.ones((9, 8), "i4")}), {}, "dtype I32"),
    "twice": (lambda found: found.update({"wte.weight": np.ones((9, 8), "f4")}), {}, "has both"),
    "another size": (None, {"n_layer": 3}, r"no tensor 'h\.2"),
    "fewer layers": (None, {"n_layer": 1}, "does not imply"),
    "a huge size": (None, {"n_embd": 2**40}, "must be from 0"),
    "heads that do not divide": (None, {"n_head": 3}, "describes no model"),
    "a type": (None, {"n_embd": "8"}, "must be of type int"),
    "another family": (
        None,
        {"model_type": "gpt_neox"},
        "'gpt_neox', .* supported; there are .*bart, .*gpt2",
    ),
    "no family": (None, {"model_type": None}, "not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_folders_that_do_not_fit_are_refused(tmp_path, case):
    change, settings, message = REFUSED[case]
    save(tmp_path / "model", "gpt2")
    edited(tmp_path / "model", change or (lambda found: None), settings)
    with pytest.raises(DataError, match=message):
        interop.load_pretrained(tmp_path / "model")


FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
WITHOUT_COUNTERPART = [
    ("bart", {"decoder_ffn_dim": 13}),
    ("bart", {"num_attention_heads": 4}),
    ("bart", {"normalize_before": True}),
    ("bart", {"is_causal": False}),
    ("mbart", {"add_final_layer_norm": False}),
    ("marian", {"static_position_embeddings": False}),
    ("marian", {"normalize_embedding": True}),
    ("pegasus", {"activation_function": "mish"}),
    ("t5", {"feed_forward_proj": "gated-tanh"}),
    ("t5", {"dense_act_fn": "gelu_new"}),
    ("t5", {"dense_act_fn": "tanh"}),
    ("t5", {"is_gated_act": True}),
    ("t5", {"is_causal": False}),
    ("t5 untied", {"dense_act_fn": "gelu"}),  # the projection "gated-gelu" is the approximation by tanh
    ("t5 untied", {"is_gated_act": False}),
    ("t5 untied", {"is_gated_act": None}),  # transformers takes null for false
    ("bert", {"position_embedding_type": "relative_key"}),
    ("bert", {"is_decoder": True}),
    ("bert", {"type_vocab_size": 0}),
    ("bert masked", {"tie_word_embeddings": False}),
    ("roberta", {"is_causal": True}),
    ("roberta", {"max_position_embeddings": 2}),
    ("roberta masked", {"hidden_act": "relu"}),
    ("vit", {"image_size": [8, 4, 4]}),
    ("vit", {"image_size": "8"}),
    ("vit", {"qkv_bias": False}),
    ("gpt2", {"add_cross_attention": True}),
    ("gpt2", {"num_attention_heads": 4}),
    ("gpt2", {"is_causal": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("mistral", {"attention_bias": True}),
    ("mistral", {"sliding_window": "8"}),
    ("mistral", {"layer_types": [FULL, SLIDING], "sliding_window": 8}),
    ("mistral", {"sliding_window": 8, "layer_types": [FULL, FULL]}),  # has a window in transformers
    ("mistral", {"layer_types": [SLIDING, SLIDING], "sliding_window": None}),
    ("qwen2", {"use_sliding_window": "yes"}),
    ("qwen2", {"max_window_layers": 1, "use_sliding_window": True}),
    ("qwen2", {"is_causal": False}),
    ("qwen3", {"layer_types": [SLIDING, FULL], "use_sliding_window": True}),
    ("qwen3", {"layer_types": [SLIDING, SLIDING], "sliding_window": 8}),
    ("qwen3", {"layer_types": [FULL]}),
    ("qwen3", {"layer_types": [FULL, "chunked_attention"]}),
    ("qwen3", {"layer_types": FULL}),
    ("qwen3", {"mlp_bias": True}),
    ("llama", {"use_sliding_window": True}),
    ("llama", {"partial_rotary_factor": 0.5}),
    ("llama", {"rope_parameters": 3}),
    # Versions of transformers differ in the length that they take.
    (
        "llama",
        {"original_max_position_embeddings": 16, "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 8}},
    ),
]
OTHER_ROTARY = [
    {"rope_type": "dynamic"},
    {"beta_fast": 16, "rope_type": "yarn"},
    {"attention_factor": 1.0, "rope_type": "yarn"},
    {"mscale": 2.0, "mscale_all_dim": 1.0, "rope_type": "yarn"},
    {"low_freq_factor": 2.0},
    {"partial_rotary_factor": 0.5},
    {"factor": "8"},
    {"full_attention": {"rope_theta": 5.0}},  # for each kind of layer, as in Gemma 3
]


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        *((name, settings, next(iter(settings))) for name, settings in WITHOUT_COUNTERPART),
        *(("llama", {"rope_parameters": LLAMA3 | changes}, next(iter(changes))) for changes in OTHER_ROTARY),
        ("t5", {"d_model": 0}, "no model"),
        ("t5", {"relative_attention_num_buckets": 2}, "num_buckets"),
        ("mistral", {"sliding_window": 0}, "attention_window must be at least 1, got 0"),
        ("llama", {"rope_parameters": LLAMA3, "max_position_embeddings": None}, "trained_length must be at least 1"),
        ("gpt2", {"n_inner": None}, r"has shape \(12, 8\); config\.json implies \(32, 8\)"),  # the default width
    ],
)
def test_settings_without_a_counterpart_are_refused(tmp_path, name, settings, named):
    """The message has the name of the setting."""
    save(tmp_path / "model", name)
    edited(tmp_path / "model", settings=settings)
    with pytest.raises(DataError, match=named):
        interop.load_pretrained(tmp_path / "model")


CANNOT = {
    "positions": ("gpt2", {"positions": choices.Rotary()}, "positions=Rotary"),
    "norm": ("gpt2", {"norm": choices.RMSNorm()}, "norm=RMSNorm"),
    "norm position": ("bart", {"norm_position": "pre"}, "normalize_before"),
    "qk_norm": ("llama", {"qk_norm": True}, "qk_norm=True"),
    "sinks": ("llama", {"attention_sinks": True}, "no tensor is known .*attention.sinks"),
    "soft cap": ("llama", {"attention_soft_cap": 3.0}, "attention_soft_cap=3.0"),
    "window": ("llama", {"attention_window": 3}, "attention_window=3"),
    "window of a translator": ("bart", {"attention_window": 3}, "attention_window=3"),
    "activation": ("t5", {"activation": "silu"}, "no plain feed-forward network with silu"),
    "rotary": ("llama", {"positions": choices.Rotary(scaling=choices.NTKScaling())}, "scaling must be"),
    "embedding scale": ("gpt2", {"embedding_scale": 2.0}, "embedding_scale=2.0"),
    "feed-forward": ("gpt2", {"feed_forward": choices.Gated()}, "feed_forward"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_models_that_the_format_cannot_express_are_refused(tmp_path, case):
    family, changes, message = CANNOT[case]
    config = dataclasses.replace(NETS[family].config, **changes)
    net = pure(NETS[family].model, config)
    with pytest.raises(ConfigError, match=message):
        interop.save_pretrained(tmp_path / "model", net, drawn(net), family=family)
    assert not list(tmp_path.iterdir())


def test_settings_of_the_model_override_given_ones(tmp_path):
    save(tmp_path / "model", "gpt2", settings={"n_positions": 3, "n_ctx": 3, "bos_token_id": 1})
    found = interop.load_pretrained(tmp_path / "model").settings
    assert [found[name] for name in ("n_positions", "n_ctx", "bos_token_id")] == [512, 512, 1]


@pytest.mark.parametrize("value", [np.int64(1), float("nan"), {1}])
def test_settings_that_are_not_json_are_refused(tmp_path, value):
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        save(tmp_path / "model", "gpt2", settings={"more": value})
    assert not list(tmp_path.iterdir())


def test_written_files_have_the_permissions_of_new_files(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    save(tmp_path / "model", "gpt2", shard_bytes=2000)
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "folder").stat().st_mode
    modes = {path.stat().st_mode for path in (tmp_path / "model").iterdir()}
    assert modes == {(tmp_path / "file").stat().st_mode}


def test_a_model_name_is_not_a_folder(tmp_path):
    with pytest.raises(DataError, match="is not a folder, and nothing is fetched"):
        interop.load_pretrained(tmp_path / "gpt2")


@pytest.mark.parametrize("whole", [False, True])
def test_an_adapter_is_not_a_model(tmp_path, whole):
    """Nor beside weights, to which transformers adds it."""
    if whole:
        save(tmp_path / "model", "gpt2")
    else:
        (tmp_path / "model").mkdir()
    (tmp_path / "model" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(DataError, match=r"holds an adapter \(adapter_config\.json\), .*merge_and_unload"):
        interop.load_pretrained(tmp_path / "model")


def test_quantized_weights_are_named(tmp_path):
    """GPTQ has other names of tensors, and other formats have other dtypes."""
    save(tmp_path / "model", "llama", settings={})
    edited(tmp_path / "model", settings={"quantization_config": {"quant_method": "gptq", "bits": 4}})
    interop.load_pretrained(tmp_path / "model")  # floats that transformers would quantize
    path, kernel = tmp_path / "model" / tensors.SINGLE, "model.layers.0.mlp.up_proj"
    arrays = safetensors.numpy.load_file(path)
    del arrays[f"{kernel}.weight"]
    safetensors.numpy.save_file(arrays | {f"{kernel}.qweight": np.zeros((2, 2), np.int32)}, path)
    with pytest.raises(DataError, match=r"are quantized \(quant_method gptq\); only floats are read"):
        interop.load_pretrained(tmp_path / "model")


def test_another_window_is_written_without_the_settings_of_the_old_one(tmp_path):
    save(tmp_path / "model", "qwen2 window")
    edited(tmp_path / "model", settings={"layer_types": ["sliding_attention"] * 2})  # as transformers 5 writes
    found = interop.load_pretrained(tmp_path / "model", attention_window=None)
    assert found.net.config.attention_window is None
    interop.save_pretrained(tmp_path / "new", found.net, found.params, family="qwen2", settings=found.settings)
    assert interop.load_pretrained(tmp_path / "new").net.config.attention_window is None


def test_existing_files_are_not_replaced(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        save(tmp_path / "model", "gpt2")
    with pytest.raises(ConfigError, match="did you mean 'gpt2'"):
        interop.save_pretrained(tmp_path / "new", NETS["gpt2"], drawn(NETS["gpt2"]), family="gpt")
    with pytest.raises(ValueError, match="do not belong"):
        interop.save_pretrained(tmp_path / "new", NETS["gpt2"], drawn(NETS["llama"]), family="gpt2")


def test_parameters_are_placed_on_a_mesh(tmp_path):
    _, params = save(tmp_path / "model", "gpt2")
    mesh = sharding.mesh("fsdp=4", jax.devices()[:4])
    found = interop.load_pretrained(tmp_path / "model", mesh=mesh)
    chex.assert_trees_all_equal(found.params, params)
    expected = sharding.Placement(mesh).params(found.net.shapes, found.net.axes)
    assert jax.tree.map(lambda x: x.sharding, found.params) == expected
    kernel = found.params["decoder"]["stack"]["layers"]["attention"]["kernel"]
    assert kernel.addressable_shards[0].data.size == kernel.size // 4


def test_a_vocabulary_that_the_mesh_does_not_divide(tmp_path):
    """A rule replicates its table, as the error says; GPT-2 has 50,257 rows."""
    _, params = save(tmp_path / "model", "gpt2")
    mesh = sharding.mesh("tensor=2", jax.devices()[:2])
    with pytest.raises(ConfigError, match=r'Placement\(mesh, {\*\*sharding\.RULES, "vocab": \(\)}\)'):
        interop.load_pretrained(tmp_path / "model", mesh=mesh)
    placement = sharding.Placement(mesh, {**sharding.RULES, "vocab": ()})
    found = interop.load_pretrained(tmp_path / "model", mesh=placement)
    chex.assert_trees_all_equal(found.params, params)
    shardings = jax.tree.map(lambda x: x.sharding, found.params)
    assert shardings == placement.params(found.net.shapes, found.net.axes)
    assert not all(one.is_fully_replicated for one in jax.tree.leaves(shardings))


def test_settings_of_another_file_are_left_out(tmp_path):
    given = {"auto_map": {"AutoModel": "code.Model"}, "quantization_config": {}, "eos_token_id": 3}
    save(tmp_path / "model", "gpt2", settings=given)
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    assert settings["eos_token_id"] == 3
    assert "auto_map" not in settings
    assert "quantization_config" not in settings


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    class Full(Exception):
        pass

    def fail(*given, **options):
        raise Full("No space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match=r"cannot write model\.safetensors: No space left"):
        save(tmp_path / "model", "gpt2")
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_no_values():
    net = pure(models.LanguageModel, models.LanguageModelConfig(8))
    read = interop.Pretrained(net, {"table": jnp.ones((1000, 60))}, "gpt2", {"n_embd": 60}, ())
    assert repr(read) == "Pretrained(gpt2, LanguageModel, 60,000 parameters)"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_one_warning(tmp_path, caplog, value):
    """Also if there is a copy of them, which NaN does not equal."""
    save(tmp_path / "model", "bart")

    def spoil(found):
        found["model.shared.weight"][2, 3] = value
        found["lm_head.weight"] = found["model.shared.weight"].copy()

    edited(tmp_path / "model", spoil)
    params = interop.load_pretrained(tmp_path / "model").params
    assert sum(int((~np.isfinite(x)).sum()) for x in jax.tree.leaves(params)) == 1
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path / 'model'} has weights of NaN or infinity, whose results mean nothing: "
        "lm_head.weight, model.shared.weight"
    )
