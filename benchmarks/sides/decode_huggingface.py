"""Hugging Face's `generate` of its Marian, whose biases are 0 here."""

from __future__ import annotations

import os

import numpy as np
import torch
import transformers

from benchmarks.sides.decode_data import BOS, EOS, PAD, layer, positions, sources, weights


def build(spec):
    torch.set_num_threads(spec.get("threads", os.cpu_count()))
    model = _model(spec)
    sentences = sources(spec)
    width = max(map(len, sentences))
    source = torch.tensor(np.array([np.pad(ids, (0, width - len(ids)), constant_values=PAD) for ids in sentences]))
    options = {"num_beams": spec["beam_size"], "do_sample": False, "length_penalty": 1.0}
    options |= {"min_new_tokens": spec["length"], "max_new_tokens": spec["length"], "early_stopping": True}
    if spec["beam_size"] == 1:
        del options["early_stopping"], options["length_penalty"]

    def once():
        with torch.inference_mode():
            found = model.generate(source, attention_mask=(source != PAD).long(), **options)
        return found[:, 1:].tolist()

    return once


def _model(spec):
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in _side(spec).items()}
    config = transformers.MarianConfig(
        vocab_size=spec["vocab_size"],
        d_model=spec["d_model"],
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=128,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        **sizes,
    )
    model = transformers.MarianMTModel(config).eval()
    params, found = weights(spec), {"shared.weight": weights(spec)["decoder"]["embeddings"]["tokens"]["table"]}
    for side in ("encoder", "decoder"):
        found[f"{side}.embed_positions.weight"] = positions(spec)
        for i in range(spec["num_layers"]):
            named = _layer(layer(params[side]["stack"]["layers"], i), spec["d_model"])
            found |= {f"{side}.layers.{i}.{name}": value for name, value in named.items()}
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if name in found:
                parameter.copy_(torch.tensor(np.ascontiguousarray(found.pop(name))))
            elif name.endswith("bias"):
                parameter.zero_()
    left = [name for name in found if "embed_positions" not in name]  # a buffer in some versions
    if left:
        raise ValueError(f"Marian has no parameters {left}")
    for side in (model.model.encoder, model.model.decoder):
        side.embed_positions.weight.data.copy_(torch.tensor(positions(spec)))
    return model


def _side(spec):
    return {"layers": spec["num_layers"], "attention_heads": spec["num_heads"], "ffn_dim": spec["d_ff"]}


def _layer(own, dim):
    """Returns the weights of a layer by Marian's names; ``[D, ...]`` becomes ``[out, in]``."""
    flat = lambda x: x.reshape(dim, -1).T
    output = lambda x: x["kernel"].reshape(-1, dim).T
    kernel = own["attention"]["kernel"]
    found = {f"self_attn.{name}_proj.weight": flat(kernel[:, :, i]) for i, name in enumerate(("q", "k", "v"))}
    found["self_attn.out_proj.weight"] = output(own["attention"]["output"])
    norms = {"self_attn_layer_norm": "attention_norm", "final_layer_norm": "feed_forward_norm"}
    if "cross" in own:
        norms["encoder_attn_layer_norm"] = "cross_norm"
        cross = own["cross"]
        found["encoder_attn.q_proj.weight"] = flat(cross["query"])
        found |= {f"encoder_attn.{n}_proj.weight": flat(cross["key_value"][:, :, i]) for i, n in enumerate(("k", "v"))}
        found["encoder_attn.out_proj.weight"] = output(cross["output"])
    for theirs, ours in norms.items():
        found |= {f"{theirs}.weight": own[ours]["scale"], f"{theirs}.bias": own[ours]["bias"]}
    for theirs, ours in (("fc1", "up"), ("fc2", "down")):
        found |= {f"{theirs}.weight": own["feed_forward"][ours]["kernel"].T}
        found |= {f"{theirs}.bias": own["feed_forward"][ours]["bias"]}
    return found


def product(size):
    x = torch.ones((size, size))
    return lambda: torch.matmul(x, x)


def versions():
    return f"transformers {transformers.__version__}, PyTorch {torch.__version__}"
