"""The released checkpoints' numbers of parameters, against Hugging Face's classes on the device without storage."""

import pytest

from jaxformer.models.presets import PRESETS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

CLASSES = {
    "bert": ("BertConfig", "BertModel"),
    "roberta": ("RobertaConfig", "RobertaModel"),
    "xlnet": ("XLNetConfig", "XLNetModel"),
    "gpt2": ("GPT2Config", "GPT2Model"),
    "t5": ("T5Config", "T5Model"),
    "llama2": ("LlamaConfig", "LlamaForCausalLM"),
    "llama3": ("LlamaConfig", "LlamaForCausalLM"),
}


def settings(name):
    """The settings of a Hugging Face configuration with the sizes of a preset."""
    config = PRESETS[name].config
    family, layers = name.partition("-")[0], getattr(config, "num_layers", None)
    if family in ("bert", "roberta"):
        sizes = {"hidden_size": config.d_model, "num_hidden_layers": layers, "num_attention_heads": config.num_heads}
        more = {"max_position_embeddings": config.max_positions + config.positions.offset}
        types = {"type_vocab_size": config.num_token_types, "intermediate_size": config.d_ff}
        return sizes | more | types | {"vocab_size": config.vocab_size}
    if family == "xlnet":
        sizes = {"d_model": config.d_model, "n_layer": layers, "n_head": config.num_heads, "d_inner": config.d_ff}
        return sizes | {"vocab_size": config.vocab_size}
    if family == "gpt2":
        return {"n_embd": config.d_model, "n_layer": layers, "n_head": config.num_heads}
    if family == "t5":
        sizes = {"d_model": config.d_model, "d_kv": config.head_dim, "d_ff": config.d_ff, "num_heads": config.num_heads}
        return sizes | {"num_layers": config.num_encoder_layers, "vocab_size": config.target_vocab_size}
    sizes = {"hidden_size": config.d_model, "num_hidden_layers": layers, "intermediate_size": config.d_ff}
    heads = {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads or config.num_heads}
    return sizes | heads | {"vocab_size": config.vocab_size, "tie_word_embeddings": False}


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.released is not None])
def test_released_checkpoints(name):
    config, model = (getattr(transformers, kind) for kind in CLASSES[name.partition("-")[0]])
    with torch.device("meta"):
        network = model(config(**settings(name)))
    assert sum(parameter.numel() for parameter in network.parameters()) == PRESETS[name].released
