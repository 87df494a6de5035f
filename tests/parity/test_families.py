"""Tiny random models of published families against those of Hugging Face, with the same weights in both."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import models, pure
from jaxformer.models import families
from tests.parity.tensors import array

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.parity

V, D, N, F, L = 50, 32, 4, 48, 2
SIZES = {"d_model": D, "num_heads": N, "d_ff": F, "dropout": 0.0}
PAIR = SIZES | {"num_encoder_layers": L, "num_decoder_layers": L}
TOKENS = np.random.default_rng(0).integers(3, V, (2, 9))
TARGET = np.random.default_rng(1).integers(3, V, (2, 6))
VALID = np.array([[1] * 9, [1] * 6 + [0] * 3], bool)
QUIET = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
HIDDEN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Weights:
    """The weights of a model of theirs, by the names of its modules; every bias and scale is drawn, none is trivial."""

    def __init__(self, model):
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                scale = parameter.dim() == 1 and name.endswith("weight")
                deviation = 0.2 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
                parameter.copy_(noise * deviation + scale)
        self.state = {name: value.detach().numpy() for name, value in model.state_dict().items()}

    def __call__(self, name):
        return jnp.asarray(self.state[name])

    def linear(self, name):
        found = {"kernel": self(f"{name}.weight").T}
        return found | ({"bias": self(f"{name}.bias")} if f"{name}.bias" in self.state else {})

    def norm(self, name):
        found = {"scale": self(f"{name}.weight")}
        return found | ({"bias": self(f"{name}.bias")} if f"{name}.bias" in self.state else {})

    def heads(self, name, dim):
        """A projection to heads: ``[D, N, H]``, and ``[N, H]`` or None."""
        kernel = self(f"{name}.weight").T
        bias = self(f"{name}.bias").reshape(-1, dim) if f"{name}.bias" in self.state else None
        return kernel.reshape(kernel.shape[0], -1, dim), bias

    def output(self, name, dim):
        found = self.linear(name)
        return found | {"kernel": found["kernel"].reshape(-1, dim, D)}

    def self_attention(self, query, key, value, output, dim=D // N):
        (q, q_bias), (k, k_bias), (v, v_bias) = (self.heads(name, dim) for name in (query, key, value))
        groups = k.shape[1]
        fused = lambda q, k, v: jnp.concatenate(
            [q.reshape(*q.shape[:-2], groups, -1, dim), k[..., None, :], v[..., None, :]], -2
        )
        found = {"kernel": fused(q, k, v), "output": self.output(output, dim)}
        return found if q_bias is None else found | {"bias": fused(q_bias, k_bias, v_bias)}

    def cross_attention(self, query, key, value, output, dim=D // N):
        (q, q_bias), (k, k_bias), (v, v_bias) = (self.heads(name, dim) for name in (query, key, value))
        found = {"query": q, "key_value": jnp.stack([k, v], 2), "output": self.output(output, dim)}
        return (
            found
            if q_bias is None
            else found | {"query_bias": q_bias, "key_value_bias": jnp.stack([k_bias, v_bias], 1)}
        )


def stacked(blocks):
    """Blocks as one tree whose leaves begin with a dimension of layers."""
    first, *_ = blocks
    if isinstance(first, dict):
        return {name: stacked([block[name] for block in blocks]) for name in first}
    return jnp.stack(blocks)


def agree(ours, theirs, where=None):
    """Checks that results agree to 2e-5 at unit scale."""
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    assert ours.shape == theirs.shape
    scale = max(1.0, theirs.std())
    difference = np.abs(ours - theirs) / scale
    assert (difference if where is None else difference[where]).max() < 2e-5


def bart_block(weights, name, cross):
    names = lambda kind: [f"{name}.{kind}.{x}" for x in ("q_proj", "k_proj", "v_proj", "out_proj")]
    block = {
        "attention": weights.self_attention(*names("self_attn")),
        "attention_norm": weights.norm(f"{name}.self_attn_layer_norm"),
        "feed_forward": {"up": weights.linear(f"{name}.fc1"), "down": weights.linear(f"{name}.fc2")},
        "feed_forward_norm": weights.norm(f"{name}.final_layer_norm"),
    }
    if cross:
        block["cross"] = weights.cross_attention(*names("encoder_attn"))
        block["cross_norm"] = weights.norm(f"{name}.encoder_attn_layer_norm")
    return block


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
    shape = {"d_model": D, "encoder_layers": L, "decoder_layers": L, "encoder_ffn_dim": F, "decoder_ffn_dim": F}
    shape |= {
        "encoder_attention_heads": N,
        "decoder_attention_heads": N,
        "vocab_size": V,
        "max_position_embeddings": 20,
    }
    shape |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2} | QUIET
    if family == "marian":
        config = transformers.MarianConfig(
            **shape, activation_function="swish", scale_embedding=True, forced_eos_token_id=2
        )
        model = transformers.MarianMTModel(config)
    else:
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**shape))
    positions = {name: x for name, x in model.state_dict().items() if "embed_positions" in name and family == "marian"}
    positions = {name: x.clone() for name, x in positions.items()}
    weights = Weights(model)
    model.load_state_dict(positions, strict=False)  # the sinusoids are parameters of theirs
    model.final_logits_bias = torch.randn(1, V, generator=torch.Generator().manual_seed(1))
    ours = getattr(families, family)(V, **PAIR | {"max_positions": 20})
    table = weights("model.shared.weight")
    params = {
        "decoder": {"embeddings": {"tokens": {"table": table}}, "output_bias": model.final_logits_bias[0].numpy()}
    }
    params["encoder"] = {"embeddings": {}}
    for side, cross in (("encoder", False), ("decoder", True)):
        blocks = [bart_block(weights, f"model.{side}.layers.{i}", cross) for i in range(L)]
        params[side]["stack"] = {"layers": stacked(blocks)}
        if family == "bart":
            params[side]["embeddings"]["positions"] = {"table": weights(f"model.{side}.embed_positions.weight")}
            params[side]["embeddings"]["norm"] = weights.norm(f"model.{side}.layernorm_embedding")
    if not params["encoder"]["embeddings"]:
        del params["encoder"]["embeddings"]
    sequence_to_sequence(model.eval(), ours, params)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_t5(version):
    dim = 6  # not D / N
    gated = version == "1.1"
    config = transformers.T5Config(
        vocab_size=V,
        d_model=D,
        d_kv=dim,
        d_ff=F,
        num_layers=L,
        num_decoder_layers=L,
        num_heads=N,
        dropout_rate=0.0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=7,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    if gated:
        config.scale_decoder_outputs = False
    model = transformers.T5ForConditionalGeneration(config)
    if gated:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    weights = Weights(model)
    with torch.no_grad():  # unscaled logits: keep them moderate
        for name, parameter in model.named_parameters():
            if name.endswith(".q.weight"):
                parameter.mul_(dim**-0.5)
    weights = Weights.__new__(Weights)
    weights.state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    sizes = PAIR | {"head_dim": dim, "num_buckets": 8, "max_distance": 7}
    ours = (families.t5_v1_1 if gated else families.t5)(V, **sizes)

    def block(name, cross):
        attention = lambda i, kind: [f"{name}.layer.{i}.{kind}.{x}" for x in "qkvo"]
        last, network = (2 if cross else 1), f"{name}.layer.{2 if cross else 1}.DenseReluDense"
        found = {
            "attention": weights.self_attention(*attention(0, "SelfAttention"), dim),
            "attention_norm": weights.norm(f"{name}.layer.0.layer_norm"),
            "feed_forward_norm": weights.norm(f"{name}.layer.{last}.layer_norm"),
        }
        pieces = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
        found["feed_forward"] = {ours: weights.linear(f"{network}.{theirs}") for ours, theirs in pieces.items()}
        if cross:
            found["cross"] = weights.cross_attention(*attention(1, "EncDecAttention"), dim)
            found["cross_norm"] = weights.norm(f"{name}.layer.1.layer_norm")
        return found

    params = {"encoder": {}, "decoder": {"embeddings": {"tokens": {"table": weights("shared.weight")}}}}
    for side, cross in (("encoder", False), ("decoder", True)):
        params[side] |= {
            "stack": {"layers": stacked([block(f"{side}.block.{i}", cross) for i in range(L)])},
            "norm": weights.norm(f"{side}.final_layer_norm"),
            "bias": {"table": weights(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")},
        }
    if gated:
        params["decoder"]["output"] = weights.linear("lm_head")
    sequence_to_sequence(model.eval(), ours, params)


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


def test_vit():
    shape = {"hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F} | HIDDEN
    config = transformers.ViTConfig(**shape, image_size=(12, 8), patch_size=4, num_channels=3)
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
                "kernel": projection.reshape(D, -1).T,
                "bias": weights("embeddings.patch_embeddings.projection.bias"),
            },
            "class_vector": weights("embeddings.cls_token").reshape(D),
            "positions": {"table": weights("embeddings.position_embeddings")[0]},
        },
        "stack": {"layers": stacked([block(i) for i in range(L)])},
        "norm": weights.norm("layernorm"),
    }
    images = array(2, 12, 8, 3)
    ours = pure(models.make_encoder, families.vit((12, 8), patch_size=4, **SIZES | {"num_layers": L}))
    theirs = model.eval()(torch.tensor(images.transpose(0, 3, 1, 2)), interpolate_pos_encoding=False).last_hidden_state
    agree(ours.apply(params, jnp.asarray(images)).states, theirs)
