"""T5 in versions 1.0 and 1.1; mT5 and Flan-T5 have the architecture of 1.1."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from jaxformer import models
from jaxformer.config import kind_of
from jaxformer.errors import DataError
from jaxformer.interop.family import Family, Settings, get, read, renamed, require, their_activation, written
from jaxformer.interop.family import activation as named_activation
from jaxformer.interop.packing import (
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

_FEED_FORWARD = {
    "relu": (choices.Plain, "relu"),
    "gelu": (choices.Plain, "gelu"),
    "gated-relu": (choices.Gated, "relu"),
    "gated-gelu": (choices.Gated, "gelu_tanh"),  # the name says gelu, the checkpoints use the approximation by tanh
    "gated-silu": (choices.Gated, "silu"),
}
_FIELDS = {
    "d_model": ("d_model", 512),
    "head_dim": ("d_kv", 64),
    "d_ff": ("d_ff", 2048),
    "num_heads": ("num_heads", 8),
    "num_encoder_layers": ("num_layers", 6),
    "dropout": ("dropout_rate", 0.1),
}
_SECOND_NAMES = {
    "head_dim": "d_kv",
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}
_DEFAULTS = {
    "t5": {"vocab_size": 32128, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "feed_forward_proj": "relu"},
    "mt5": {"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"},
}


def _net(kind: str, settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    # transformers derives these two from others if they are missing, and takes null for false.
    nulls = {name: False for name in ("is_gated_act", "scale_decoder_outputs") if settings.get(name, 0) is None}
    settings = {**_DEFAULTS[kind], **renamed(settings, _SECOND_NAMES), **nulls}
    projection = get(settings, "feed_forward_proj", "relu")
    if projection not in _FEED_FORWARD:
        raise DataError(f"feed_forward_proj in config.json must be one of {', '.join(_FEED_FORWARD)}: {projection!r}")
    feed_forward, activation = _FEED_FORWARD[projection]
    # The gate and the activation follow from the projection, but transformers reads them instead if a file has them.
    require(settings, is_gated_act=feed_forward is choices.Gated, is_causal=True)
    if named_activation(settings, "dense_act_fn", their_activation(activation)) != activation:
        raise DataError(
            f"dense_act_fn in config.json must be that of feed_forward_proj {projection!r}, "
            f"got {settings['dense_act_fn']!r}"
        )
    fields = read(settings, _FIELDS)
    # In version 5 of transformers, this setting has the effect that `tie_word_embeddings` had on the scale before.
    scaled = get(settings, "scale_decoder_outputs", get(settings, "tie_word_embeddings", True)) and kind == "t5"
    config = families.t5(
        get(settings, "vocab_size", 32128),
        **fields,
        num_decoder_layers=get(settings, "num_decoder_layers", fields["num_encoder_layers"]),
        positions=choices.T5(
            get(settings, "relative_attention_num_buckets", 32), get(settings, "relative_attention_max_distance", 128)
        ),
        norm=choices.RMSNorm(get(settings, "layer_norm_epsilon", 1e-6)),
        feed_forward=feed_forward(bias=False),
        activation=activation,
        output_scale=fields["d_model"] ** -0.5 if scaled else 1.0,
        tie_embeddings="inputs" if "lm_head.weight" in shapes else "all",
    )
    return pure(models.EncoderDecoder, config)


def _settings(kind: str, net: Pure) -> Settings:
    config = net.config
    ours = {ours: theirs for theirs, ours in _FEED_FORWARD.items()}
    network, positions = type(config.feed_forward), config.positions
    if (network, config.activation) not in ours:
        raise ValueError(f"T5 has no {kind_of(config.feed_forward)} feed-forward network with {config.activation}")
    if not isinstance(positions, choices.T5):
        raise ValueError(f"positions must be t5 in a file of {kind}, got {kind_of(positions)}")
    return {
        "architectures": [f"{kind.upper()}ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": config.source_vocab_size,
        **written(config, _FIELDS),
        "d_kv": config.head_dim or config.d_model // config.num_heads,
        "num_decoder_layers": config.num_decoder_layers,
        "relative_attention_num_buckets": positions.num_buckets,
        "relative_attention_max_distance": positions.max_distance,
        "layer_norm_epsilon": config.norm.epsilon,
        "feed_forward_proj": ours[network, config.activation],
        "dense_act_fn": their_activation(config.activation),
        "is_gated_act": network is choices.Gated,
        **({"scale_decoder_outputs": config.output_scale != 1.0} if kind == "t5" else {}),
        "tie_word_embeddings": config.tie_embeddings == "all",
    }


def _side(side: str, gated: bool) -> Table:
    layer, last = f"{side}.block.{{}}.layer", {"encoder": 1, "decoder": 2}[side]
    network = f"{layer}.{last}.DenseReluDense"
    names = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    return {
        "stack": {
            "layers": {
                "attention": self_attention(*(f"{layer}.0.SelfAttention.{x}" for x in "qkvo")),
                "attention_norm": norm(f"{layer}.0.layer_norm"),
                "cross": cross_attention(*(f"{layer}.1.EncDecAttention.{x}" for x in "qkvo")),
                "cross_norm": norm(f"{layer}.1.layer_norm"),
                "feed_forward": {ours: linear(f"{network}.{theirs}") for ours, theirs in names.items()},
                "feed_forward_norm": norm(f"{layer}.{last}.layer_norm"),
            }
        },
        "norm": norm(f"{side}.final_layer_norm"),
        "bias": table(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"),
    }


def _table(net: Pure) -> Table:
    sides = {side: _side(side, isinstance(net.config.feed_forward, choices.Gated)) for side in ("encoder", "decoder")}
    output = {"kernel": array("lm_head.weight", packing=TRANSPOSED)}
    return sides | {"decoder": {**sides["decoder"], "embeddings": {"tokens": table("shared")}, "output": output}}


def _copies(net: Pure) -> dict[str, str]:
    names = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    return dict.fromkeys(names, "shared.weight")


FAMILIES = {
    kind: Family(
        net=functools.partial(_net, kind),
        settings=functools.partial(_settings, kind),
        table=_table,
        heads=("lm_head.",),
        copies=_copies,
        # Old files hold this unused tensor: cross-attention has no positions.
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )
    for kind in _DEFAULTS
}
"""The families of this file by their ``model_type``."""
