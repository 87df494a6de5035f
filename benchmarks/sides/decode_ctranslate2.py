"""CTranslate2's greedy and beam search."""

from __future__ import annotations

import os
import tempfile

import ctranslate2
import numpy as np

from benchmarks.sides.decode_data import layer, positions, sources, weights


def build(spec):
    pieces = ["<pad>", "<s>", "</s>", "<unk>", *(f"{i}" for i in range(4, spec["vocab_size"]))]
    with tempfile.TemporaryDirectory() as folder:
        _spec(spec, pieces).save(folder)
        model = ctranslate2.Translator(
            folder,
            compute_type=spec["compute_type"],
            inter_threads=1,
            intra_threads=spec.get("threads", os.cpu_count()),
        )
    sentences = [[pieces[i] for i in ids] for ids in sources(spec)]
    options = {"max_batch_size": 0, "beam_size": spec["beam_size"], "length_penalty": 1.0}
    options |= {"min_decoding_length": spec["length"], "max_decoding_length": spec["length"]}
    numbers = {piece: i for i, piece in enumerate(pieces)}

    def once():
        found = model.translate_batch(sentences, **options)
        return [[numbers[piece] for piece in result.hypotheses[0]] for result in found]

    return once


def _spec(spec, pieces):
    """Returns the model in CTranslate2's format."""
    params, dim = weights(spec), spec["d_model"]
    made = ctranslate2.specs.TransformerSpec.from_config(
        (spec["num_layers"], spec["num_layers"]), spec["num_heads"], pre_norm=False
    )
    table = params["decoder"]["embeddings"]["tokens"]["table"]
    flat = lambda x: np.ascontiguousarray(x.reshape(dim, -1).T)  # [D, ...] to [out, in]

    def norm(target, given):
        target.gamma, target.beta = given["scale"], given["bias"]

    def output(target, given):
        target.weight = np.ascontiguousarray(given["kernel"].reshape(-1, dim).T)

    for side, parts in (("encoder", made.encoder), ("decoder", made.decoder)):
        embeddings = parts.embeddings[0] if side == "encoder" else parts.embeddings
        embeddings.weight = table
        parts.scale_embeddings = True
        parts.position_encodings.encodings = positions(spec)
        for i, target in enumerate(parts.layer):
            own = layer(params[side]["stack"]["layers"], i)
            kernel = own["attention"]["kernel"]  # [D, N, 3, H]: query, key and value of each head
            target.self_attention.linear[0].weight = np.concatenate([flat(kernel[:, :, k]) for k in range(3)])
            output(target.self_attention.linear[1], own["attention"]["output"])
            norm(target.self_attention.layer_norm, own["attention_norm"])
            if side == "decoder":
                cross = target.attention
                cross.linear[0].weight = flat(own["cross"]["query"])
                cross.linear[1].weight = np.concatenate([flat(own["cross"]["key_value"][:, :, k]) for k in range(2)])
                output(cross.linear[2], own["cross"]["output"])
                norm(cross.layer_norm, own["cross_norm"])
            for name, linear in (("up", target.ffn.linear_0), ("down", target.ffn.linear_1)):
                given = own["feed_forward"][name]
                linear.weight, linear.bias = np.ascontiguousarray(given["kernel"].T), given["bias"]
            norm(target.ffn.layer_norm, own["feed_forward_norm"])
    made.decoder.projection.weight = table
    made.register_source_vocabulary(pieces)
    made.register_target_vocabulary(pieces)
    made.config.add_source_eos, made.config.decoder_start_token = False, "<s>"
    made.config.layer_norm_epsilon = 1e-5
    made.validate()
    made.optimize()
    return made


def product(size):
    x = np.ones((size, size), np.float32)
    return lambda: x @ x


def versions():
    return f"CTranslate2 {ctranslate2.__version__}"
