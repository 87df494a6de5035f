"""Tiny random models of published families, with the same weights in those of Hugging Face and in ours."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models import families

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

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


def marian_or_bart(family):
    """Their model, our configuration and its parameters."""
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
    return model.eval(), ours, params


def t5(version):
    """Their model, our configuration and its parameters."""
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
    return model.eval(), ours, params
