"""Tiny random models of Hugging Face's families, saved by its library and read by ours."""

import tempfile

import numpy as np
import pytest

from jaxformer import interop

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

V, D, N, F, L = 50, 32, 4, 48, 2
TOKENS = np.random.default_rng(0).integers(3, V, (2, 9))
TARGET = np.random.default_rng(1).integers(3, V, (2, 6))
VALID = np.array([[1] * 9, [1] * 6 + [0] * 3], bool)
QUIET = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
HIDDEN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def randomized(model):
    """Draws every parameter and bias of a model of theirs, so that none is trivial; sinusoids stay."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (
                "embed_positions" in name
                and "Sinusoidal" in type(model.get_submodule(name.rpartition(".")[0])).__name__
            ):
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            scale = parameter.dim() == 1 and name.endswith("weight")
            deviation = 0.2 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(noise * deviation + scale)
            if name.endswith(".q.weight"):  # T5, whose logits are not scaled: keep them moderate
                parameter.mul_((parameter.shape[0] / N) ** -0.5)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator))
    return model.eval()


def read(model):
    """Saves a model of theirs and reads it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return interop.load_pretrained(folder)


def bart_like(family, **options):
    """Their BART, mBART, Marian or Pegasus."""
    shape = {"d_model": D, "encoder_layers": L, "decoder_layers": L, "encoder_ffn_dim": F, "decoder_ffn_dim": F}
    shape |= {"encoder_attention_heads": N, "decoder_attention_heads": N, "vocab_size": V}
    shape |= {"max_position_embeddings": 20, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    shape |= {"decoder_start_token_id": 2} | QUIET | options
    if family == "marian":
        shape = {"activation_function": "swish", "scale_embedding": True, "forced_eos_token_id": 2} | shape
    prefix = {"bart": "Bart", "mbart": "MBart", "marian": "Marian", "pegasus": "Pegasus", "m2m_100": "M2M100"}[family]
    head = "MTModel" if family == "marian" else "ForConditionalGeneration"
    config = getattr(transformers, f"{prefix}Config")(**shape)
    return randomized(getattr(transformers, f"{prefix}{head}")(config))


def t5(version, **options):
    """Their T5 1.0 or 1.1."""
    gated = version == "1.1"
    shape = {"vocab_size": V, "d_model": D, "d_kv": 6, "d_ff": F, "num_layers": L, "num_decoder_layers": L}
    shape |= {"num_heads": N, "dropout_rate": 0.0, "pad_token_id": 0, "decoder_start_token_id": 0}
    shape |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 7}
    shape |= {"feed_forward_proj": "gated-gelu" if gated else "relu", "tie_word_embeddings": not gated} | options
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**shape))
    if gated:  # their version 5 ties the head in memory
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return randomized(model)
