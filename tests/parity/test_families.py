"""Tiny random models of published families against those of Hugging Face, with the same weights in both."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import models, pure
from jaxformer.models import families
from tests.parity.copied import (
    HIDDEN,
    SIZES,
    TARGET,
    TOKENS,
    VALID,
    D,
    F,
    L,
    N,
    V,
    Weights,
    marian_or_bart,
    stacked,
    t5,
)
from tests.parity.tensors import array

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.parity


def agree(ours, theirs, where=None):
    """Checks that results agree to 2e-5 at unit scale."""
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    assert ours.shape == theirs.shape
    scale = max(1.0, theirs.std())
    difference = np.abs(ours - theirs) / scale
    assert (difference if where is None else difference[where]).max() < 2e-5


def sequence_to_sequence(model, config, params):
    """Compares logits of a padded batch."""
    net = pure(models.EncoderDecoder, config)
    theirs = model(
        input_ids=torch.tensor(TOKENS),
        attention_mask=torch.tensor(VALID.astype(int)),
        decoder_input_ids=torch.tensor(TARGET),
    ).logits
    agree(net.apply(params, jnp.asarray(TOKENS), jnp.asarray(TARGET), source_valid=jnp.asarray(VALID)), theirs)


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_marian_and_bart(family):
    sequence_to_sequence(*marian_or_bart(family))


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_t5(version):
    sequence_to_sequence(*t5(version))


def bert_block(weights, name):
    attention = [f"{name}.attention.self.{x}" for x in ("query", "key", "value")]
    return {
        "attention": weights.self_attention(*attention, f"{name}.attention.output.dense"),
        "attention_norm": weights.norm(f"{name}.attention.output.LayerNorm"),
        "feed_forward": {
            "up": weights.linear(f"{name}.intermediate.dense"),
            "down": weights.linear(f"{name}.output.dense"),
        },
        "feed_forward_norm": weights.norm(f"{name}.output.LayerNorm"),
    }


def bert_embeddings(weights, prefix):
    names = {"tokens": "word", "positions": "position", "types": "token_type"}
    tables = {name: {"table": weights(f"{prefix}embeddings.{x}_embeddings.weight")} for name, x in names.items()}
    return tables | {"norm": weights.norm(f"{prefix}embeddings.LayerNorm")}


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_bert_and_roberta(family):
    shape = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N} | HIDDEN
    shape |= {"intermediate_size": F, "max_position_embeddings": 20}
    if family == "bert":
        model = transformers.BertModel(transformers.BertConfig(**shape, pad_token_id=0), add_pooling_layer=False)
    else:
        options = {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
        model = transformers.RobertaModel(transformers.RobertaConfig(**shape, **options), add_pooling_layer=False)
    weights = Weights(model)
    offset = 2 if family == "roberta" else 0
    ours = getattr(families, family)(V, **SIZES | {"num_layers": L, "max_positions": 20 - offset})
    params = {
        "embeddings": bert_embeddings(weights, ""),
        "stack": {"layers": stacked([bert_block(weights, f"encoder.layer.{i}") for i in range(L)])},
    }
    tokens = np.where(VALID, TOKENS, 1 if family == "roberta" else 0)
    given, types = {}, np.zeros_like(tokens)
    if family == "roberta":
        given["positions"] = jnp.asarray(np.cumsum(VALID, 1) * VALID - 1)
    else:
        types[:, 4:] = 1
        given["types"] = jnp.asarray(types)
    memory = pure(models.make_encoder, ours).apply(params, jnp.asarray(tokens), valid=jnp.asarray(VALID), **given)
    theirs = model.eval()(
        input_ids=torch.tensor(tokens),
        attention_mask=torch.tensor(VALID.astype(int)),
        token_type_ids=torch.tensor(types),
    ).last_hidden_state
    agree(memory.states, theirs, VALID)


def test_bert_for_masked_tokens():
    shape = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N} | HIDDEN
    shape |= {"intermediate_size": F, "max_position_embeddings": 20}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**shape, pad_token_id=0))
    weights = Weights(model)
    params = {
        "encoder": {
            "embeddings": bert_embeddings(weights, "bert."),
            "stack": {"layers": stacked([bert_block(weights, f"bert.encoder.layer.{i}") for i in range(L)])},
        },
        "transform": weights.linear("cls.predictions.transform.dense"),
        "norm": weights.norm("cls.predictions.transform.LayerNorm"),
        "output_bias": weights("cls.predictions.bias"),
    }
    tokens = np.where(VALID, TOKENS, 0)
    net = pure(models.MaskedLanguageModel, families.bert(V, **SIZES, num_layers=L, max_positions=20))
    theirs = model.eval()(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(VALID.astype(int))).logits
    agree(net.apply(params, jnp.asarray(tokens), valid=jnp.asarray(VALID)), theirs, VALID)


def test_gpt2():
    shape = {"vocab_size": V, "n_embd": D, "n_layer": L, "n_head": N, "n_inner": F, "n_positions": 20}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    )
    weights = Weights(model)

    def linear(name):  # Conv1D: [in, out]
        return {"kernel": weights(f"{name}.weight"), "bias": weights(f"{name}.bias")}

    def block(name):
        fused, output = linear(f"{name}.attn.c_attn"), linear(f"{name}.attn.c_proj")
        attention = {
            "kernel": fused["kernel"].reshape(D, 3, N, D // N).swapaxes(1, 2),
            "bias": fused["bias"].reshape(3, N, D // N).swapaxes(0, 1),
            "output": output | {"kernel": output["kernel"].reshape(N, D // N, D)},
        }
        return {
            "attention": attention,
            "attention_norm": weights.norm(f"{name}.ln_1"),
            "feed_forward": {"up": linear(f"{name}.mlp.c_fc"), "down": linear(f"{name}.mlp.c_proj")},
            "feed_forward_norm": weights.norm(f"{name}.ln_2"),
        }

    params = {
        "embeddings": {
            "tokens": {"table": weights("transformer.wte.weight")},
            "positions": {"table": weights("transformer.wpe.weight")},
        },
        "stack": {"layers": stacked([block(f"transformer.h.{i}") for i in range(L)])},
        "norm": weights.norm("transformer.ln_f"),
    }
    ours = pure(models.LanguageModel, families.gpt2(V, **SIZES | {"num_layers": L, "max_positions": 20}))
    agree(ours.apply({"decoder": params}, jnp.asarray(TOKENS)), model.eval()(torch.tensor(TOKENS)).logits)


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3"])
def test_llama(scaling):
    shape = {"vocab_size": V, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": L}
    shape |= {"num_attention_heads": N, "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5}
    rope = {"rope_type": "default", "rope_theta": 500.0}
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": 3.0}
    if scaling == "llama3":
        rope |= {"rope_type": "llama3", "factor": 3.0, "original_max_position_embeddings": 8}
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, rope_parameters=rope))
    weights = Weights(model)

    def block(name):
        names = [f"{name}.self_attn.{x}_proj" for x in "qkvo"]
        return {
            "attention": weights.self_attention(*names),
            "attention_norm": weights.norm(f"{name}.input_layernorm"),
            "feed_forward": {x: weights.linear(f"{name}.mlp.{x}_proj") for x in ("gate", "up", "down")},
            "feed_forward_norm": weights.norm(f"{name}.post_attention_layernorm"),
        }

    params = {
        "embeddings": {"tokens": {"table": weights("model.embed_tokens.weight")}},
        "stack": {"layers": stacked([block(f"model.layers.{i}") for i in range(L)])},
        "norm": weights.norm("model.norm"),
        "output": weights.linear("lm_head"),
    }
    rotary = models.RotaryConfig(base=500.0, scaling=scaling, factor=3.0, trained_length=8)
    config = families.llama(V, **SIZES | {"num_layers": L, "num_kv_heads": 2, "rotary": rotary})
    ours = pure(models.LanguageModel, config)
    agree(ours.apply({"decoder": params}, jnp.asarray(TOKENS)), model.eval()(torch.tensor(TOKENS)).logits)


@pytest.mark.parametrize("size", [(12, 12), (20, 12), (8, 16)])
def test_vit(size):
    shape = {"hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F} | HIDDEN
    config = transformers.ViTConfig(**shape, image_size=(12, 12), patch_size=4, num_channels=3)
    model = transformers.ViTModel(config, add_pooling_layer=False)
    weights = Weights(model)
    attention = ("layers.{}.attention.q_proj", "layers.{}.attention.k_proj", "layers.{}.attention.v_proj")
    output = "layers.{}.attention.o_proj"

    def block(i):
        return {
            "attention": weights.self_attention(*(name.format(i) for name in (*attention, output))),
            "attention_norm": weights.norm(f"layers.{i}.layernorm_before"),
            "feed_forward": {
                "up": weights.linear(f"layers.{i}.mlp.fc1"),
                "down": weights.linear(f"layers.{i}.mlp.fc2"),
            },
            "feed_forward_norm": weights.norm(f"layers.{i}.layernorm_after"),
        }

    projection = weights("embeddings.patch_embeddings.projection.weight")
    params = {
        "embeddings": {
            "projection": {
                "kernel": projection.transpose(2, 3, 1, 0),
                "bias": weights("embeddings.patch_embeddings.projection.bias"),
            },
            "class_vector": weights("embeddings.cls_token").reshape(D),
            "positions": {"table": weights("embeddings.position_embeddings")[0]},
        },
        "stack": {"layers": stacked([block(i) for i in range(L)])},
        "norm": weights.norm("layernorm"),
    }
    images = array(2, *size, 3)
    pixels, other = torch.tensor(images.transpose(0, 3, 1, 2)), size != (12, 12)
    theirs = model.eval()(pixels, interpolate_pos_encoding=other).last_hidden_state
    given = models.VisionTransformerConfig(image_size=(12, 12), patch_size=4), {"encoder": params}, size
    ours = pure(models.make_encoder, families.vit(size, patch_size=4, **SIZES | {"num_layers": L}))
    agree(ours.apply(models.with_image_size(*given)[1]["encoder"], jnp.asarray(images)).states, theirs)
