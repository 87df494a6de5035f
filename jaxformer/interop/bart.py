"""BART, mBART, Marian (OPUS-MT), Pegasus and M2M100 (NLLB): encoder-decoders with one set of names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import numpy as np

from jaxformer import functional, models
from jaxformer.interop.family import Family, Settings, get, read, renamed, require, shared, written
from jaxformer.interop.packing import (
    ONE_ROW,
    TRANSPOSED,
    Shape,
    Table,
    array,
    cross_attention,
    linear,
    norm,
    self_attention,
    table,
)
from jaxformer.models import choices, families
from jaxformer.modules.pure import Pure, pure

_FIELDS = {
    "d_model": ("d_model", 1024),
    "num_encoder_layers": ("encoder_layers", 12),
    "num_decoder_layers": ("decoder_layers", 12),
    "max_positions": ("max_position_embeddings", 1024),
    "activation": ("activation_function", "gelu"),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
}
_LEARNED, _SINUSOIDAL = choices.Learned(offset=2), choices.Sinusoidal("halves")
_SWITCHES = {
    "bart": (_LEARNED, "post"),
    "mbart": (_LEARNED, "pre"),
    "marian": (_SINUSOIDAL, "post"),
    "pegasus": (_SINUSOIDAL, "pre"),
    "m2m_100": (choices.Sinusoidal("fairseq", 2), "pre"),
}
"""The positions, and those of the norms."""
_DEFAULTS = {
    "marian": {"vocab_size": 58101},
    "m2m_100": {
        "vocab_size": 128112,
        "activation_function": "relu",
        "attention_dropout": 0.1,
        "scale_embedding": True,
    },
}
"""The settings that a family leaves out if they have these values, unlike those of BART."""
_TIES = {(True, True): "all", (True, False): "decoder", (False, True): "inputs", (False, False): "none"}
"""Our tying, by ``tie_word_embeddings`` and ``share_encoder_decoder_embeddings``."""
_TABLES = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
_COPIES = {
    "all": dict.fromkeys((*_TABLES, "lm_head.weight"), "shared.weight"),
    "inputs": dict.fromkeys(_TABLES, "shared.weight"),
    "decoder": {"lm_head.weight": "decoder.embed_tokens.weight"},
    "none": {},
}
"""The names under which files may repeat a table that is shared, with its own name, by our tying."""
_ARCHITECTURES = {
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "marian": "MarianMTModel",
    "pegasus": "PegasusForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
}


def _net(kind: str, settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    positions, norm_position = _SWITCHES[kind]
    settings = renamed(settings, {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads"})
    settings = _DEFAULTS.get(kind, {}) | settings
    pre, learned = norm_position == "pre", positions is _LEARNED
    if kind == "m2m_100":
        require(settings, pad_token_id=1)  # positions count from the next number
    require(settings, normalize_before=pre, add_final_layer_norm=pre, normalize_embedding=learned)
    require(settings, is_causal=True)  # of the decoder
    require(settings, static_position_embeddings=not learned)
    fields = read(settings, _FIELDS)
    vocab = get(settings, "vocab_size", 50265)
    tied = get(settings, "tie_word_embeddings", True), get(settings, "share_encoder_decoder_embeddings", True)
    config = families.bart(
        vocab,
        **fields,
        num_heads=shared(settings, "encoder_attention_heads", "decoder_attention_heads", 16),
        d_ff=shared(settings, "encoder_ffn_dim", "decoder_ffn_dim", 4096),
        embedding_scale=fields["d_model"] ** 0.5 if get(settings, "scale_embedding", False) else 1.0,
        feed_forward=choices.Plain(dropout=get(settings, "activation_dropout", 0.0)),
        tie_embeddings=_TIES[tied],
        positions=positions,
        embedding_norm=learned,
        output_bias=kind != "m2m_100",
        norm_position=norm_position,
    )
    target = get(settings, "decoder_vocab_size", vocab)
    return pure(models.EncoderDecoder, dataclasses.replace(config, target_vocab_size=target))


def _settings(kind: str, net: Pure) -> Settings:
    config = net.config
    pre = config.norm_position == "pre"
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "is_encoder_decoder": True,
        "vocab_size": config.source_vocab_size,
        "decoder_vocab_size": config.target_vocab_size,
        **written(config, _FIELDS),
        "num_hidden_layers": config.num_encoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "scale_embedding": config.embedding_scale != 1.0,
        "normalize_before": pre,
        "add_final_layer_norm": pre,
        "normalize_embedding": config.embedding_norm,
        "static_position_embeddings": not isinstance(config.positions, choices.Learned),
        "activation_dropout": config.feed_forward.dropout,
        "share_encoder_decoder_embeddings": config.tie_embeddings in ("all", "inputs"),
        "tie_word_embeddings": config.tie_embeddings in ("all", "decoder"),
    }


def _table(net: Pure) -> Table:
    tables = {"encoder": "encoder.embed_tokens", "decoder": "decoder.embed_tokens"}
    if net.config.tie_embeddings in ("all", "inputs"):
        tables["decoder"] = "shared"
    sides = {side: _side(side, tables[side]) for side in tables}
    output = {"kernel": array("lm_head.weight", packing=TRANSPOSED)}
    bias = array("final_logits_bias", packing=ONE_ROW, optional=True)
    return sides | {"decoder": {**sides["decoder"], "output": output, "output_bias": bias}}


def _side(side: str, tokens: str) -> Table:
    layer = f"{side}.layers.{{}}"
    projections = "q_proj", "k_proj", "v_proj", "out_proj"
    return {
        "embeddings": {
            "tokens": table(tokens),
            "positions": table(f"{side}.embed_positions"),
            "norm": norm(f"{side}.layernorm_embedding"),
        },
        "stack": {
            "layers": {
                "attention": self_attention(*(f"{layer}.self_attn.{name}" for name in projections)),
                "attention_norm": norm(f"{layer}.self_attn_layer_norm"),
                "cross": cross_attention(*(f"{layer}.encoder_attn.{name}" for name in projections)),
                "cross_norm": norm(f"{layer}.encoder_attn_layer_norm"),
                "feed_forward": {"up": linear(f"{layer}.fc1"), "down": linear(f"{layer}.fc2")},
                "feed_forward_norm": norm(f"{layer}.final_layer_norm"),
            }
        },
        "norm": norm(f"{side}.layer_norm"),
    }


def _computed(net: Pure) -> dict[str, tuple[Shape, Callable[[], jax.Array]]]:
    """Returns the sinusoids that older files of Marian and Pegasus hold."""
    config = net.config
    if isinstance(config.positions, choices.Learned) or config.positions == _SWITCHES["m2m_100"][0]:
        return {}
    rows, dim = config.max_positions, config.d_model
    values = functools.partial(functional.sinusoidal, dim=dim, layout="halves")
    return {
        f"{side}.embed_positions.weight": ((rows, dim), lambda: values(np.arange(rows)))
        for side in ("encoder", "decoder")
    }


def _repeated(net: Pure) -> tuple[str, ...]:
    """Returns both embedding tables if they are shared and the output has its own: transformers then ties neither."""
    return _TABLES if net.config.tie_embeddings == "inputs" else ()


FAMILIES = {
    kind: Family(
        net=functools.partial(_net, kind),
        settings=functools.partial(_settings, kind),
        table=_table,
        prefix="model.",
        heads=("final_logits_bias", "lm_head.", "classification_head.", "qa_outputs."),
        copies=lambda net: _COPIES[net.config.tie_embeddings],
        repeated=_repeated,
        computed=_computed,
        ignored=(r"(encoder|decoder)\.(version|embed_positions\.weights)", r"(classification_head|qa_outputs)\..*"),
    )
    for kind in _SWITCHES
}
"""The families of this file by their ``model_type``."""
