"""GPT-2, whose linear layers hold ``[in, out]``."""

from __future__ import annotations

from collections.abc import Mapping

from jaxformer import models
from jaxformer.interop.family import Family, Settings, get, read, renamed, require, written
from jaxformer.interop.packing import FROM_HEADS_PLAIN, SAME, SIDE_BY_SIDE, Shape, Table, array, linear, norm, table
from jaxformer.models import choices, families
from jaxformer.modules.pure import Pure, pure

_FIELDS = {
    "vocab_size": ("vocab_size", 50257),
    "d_model": ("n_embd", 768),
    "num_heads": ("n_head", 12),
    "num_layers": ("n_layer", 12),
    "max_positions": ("n_positions", 1024),
    "activation": ("activation_function", "gelu_new"),
    "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
}
_SECOND_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def _net(settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    settings = renamed(settings, _SECOND_NAMES)
    require(settings, is_causal=True, add_cross_attention=False, tie_word_embeddings=True)
    require(settings, scale_attn_by_inverse_layer_idx=False)
    fields, of_embeddings = read(settings, _FIELDS), get(settings, "embd_pdrop", 0.1)
    config = families.gpt2(
        **fields,
        d_ff=get(settings, "n_inner", 4 * fields["d_model"]),
        norm=choices.LayerNorm(get(settings, "layer_norm_epsilon", 1e-5)),
        attention_scale=None if get(settings, "scale_attn_weights", True) else 1.0,
        embedding_dropout=None if of_embeddings == fields["dropout"] else of_embeddings,
    )
    return pure(models.LanguageModel, config)


def _settings(net: Pure) -> Settings:
    config = net.config
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_inner": config.d_ff,
        "n_ctx": config.max_positions,
        "layer_norm_epsilon": config.norm.epsilon,
        "scale_attn_weights": config.attention_scale is None,
        "embd_pdrop": config.dropout if config.embedding_dropout is None else config.embedding_dropout,
        **written(config, _FIELDS),
    }


def _table(net: Pure) -> Table:
    layer = "h.{}"
    return {
        "decoder": {
            "embeddings": {"tokens": table("wte"), "positions": table("wpe")},
            "stack": {
                "layers": {
                    "attention": {
                        "kernel": array(f"{layer}.attn.c_attn.weight", packing=SIDE_BY_SIDE),
                        "bias": array(f"{layer}.attn.c_attn.bias", packing=SIDE_BY_SIDE),
                        "output": linear(f"{layer}.attn.c_proj", FROM_HEADS_PLAIN),
                    },
                    "attention_norm": norm(f"{layer}.ln_1"),
                    "feed_forward": {
                        "up": linear(f"{layer}.mlp.c_fc", SAME),
                        "down": linear(f"{layer}.mlp.c_proj", SAME),
                    },
                    "feed_forward_norm": norm(f"{layer}.ln_2"),
                }
            },
            "norm": norm("ln_f"),
        }
    }


FAMILIES = {
    "gpt2": Family(
        net=_net,
        settings=_settings,
        table=_table,
        prefix="transformer.",
        heads=("lm_head.", "score."),
        copies=lambda net: {"lm_head.weight": "wte.weight"},
        ignored=(
            r"h\.\d+\.attn\.(bias|masked_bias)",  # triangular masks
            r"score\.weight",  # a classifier
        ),
    )
}
"""The families of this file by their ``model_type``."""
