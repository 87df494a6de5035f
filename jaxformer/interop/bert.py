"""BERT, RoBERTa, DistilBERT and the vision Transformer: encoders, alone or with the head of a task."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from jaxformer import models
from jaxformer.errors import DataError
from jaxformer.interop.family import Family, Settings, get, has_head, read, renamed, require, written
from jaxformer.interop.packing import (
    ONE_ROW,
    ONE_TOKEN,
    PATCHES,
    Shape,
    Table,
    array,
    linear,
    norm,
    self_attention,
    table,
)
from jaxformer.models import choices, families
from jaxformer.modules.pure import Pure, pure

_LAYERS = {
    "d_model": ("hidden_size", 768),
    "num_heads": ("num_attention_heads", 12),
    "d_ff": ("intermediate_size", 3072),
    "num_layers": ("num_hidden_layers", 12),
    "activation": ("hidden_act", "gelu"),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
_OF_DISTILBERT = {
    "d_model": ("dim", 768),
    "num_heads": ("n_heads", 12),
    "d_ff": ("hidden_dim", 3072),
    "num_layers": ("n_layers", 6),
    "activation": ("activation", "gelu"),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.1),
}
_OF_VIT = _LAYERS | {
    "patch_size": ("patch_size", 16),
    "num_channels": ("num_channels", 3),
    "dropout": ("hidden_dropout_prob", 0.0),
    "attention_dropout": ("attention_probs_dropout_prob", 0.0),
}
_HEADS = {
    "bert": {
        "transform": linear("cls.predictions.transform.dense"),
        "norm": norm("cls.predictions.transform.LayerNorm"),
        "output_bias": array("cls.predictions.bias"),
    },
    "roberta": {
        "transform": linear("lm_head.dense"),
        "norm": norm("lm_head.layer_norm"),
        "output_bias": array("lm_head.bias"),
    },
}
_NORMS = {"bert": "cls.predictions.transform.LayerNorm.weight", "roberta": "lm_head.layer_norm.weight"}
"""A tensor that every file with the head has."""


def _net(kind: str, settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    require(settings, position_embedding_type="absolute", is_decoder=False, is_causal=False)
    roberta = kind == "roberta"
    offset = get(settings, "pad_token_id", 1) + 1 if roberta else 0
    rows = get(settings, "max_position_embeddings", 512)
    if rows <= offset:
        raise DataError(f"max_position_embeddings in config.json must be above {offset}, got {rows}")
    config = getattr(families, kind)(
        get(settings, "vocab_size", {"bert": 30522, "roberta": 50265}[kind]),
        **read(settings, _LAYERS),
        max_positions=rows - offset,
        positions=choices.Learned(offset),
        num_token_types=get(settings, "type_vocab_size", 2),
        norm=choices.LayerNorm(get(settings, "layer_norm_eps", 1e-12)),
    )
    if config.num_token_types < 1:
        raise DataError("type_vocab_size in config.json must be at least 1, got 0")
    if _NORMS[kind] not in shapes:
        return pure(models.make_encoder, config)
    if roberta and config.activation != "gelu":  # the head of transformers has no other
        raise DataError(f"hidden_act in config.json must be gelu with this head, got {settings['hidden_act']!r}")
    require(settings, tie_word_embeddings=True)
    return pure(models.MaskedLanguageModel, config)


def _settings(kind: str, name: str, net: Pure) -> Settings:
    config = net.config
    if kind == "roberta" and not config.positions.offset:
        raise ValueError("its positions start at 0, but those of a roberta start after the id of the padding token")
    padding = {"pad_token_id": config.positions.offset - 1} if kind == "roberta" else {}
    return padding | {
        "architectures": [f"{name}ForMaskedLM" if has_head(net) else f"{name}Model"],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions + config.positions.offset,
        "type_vocab_size": config.num_token_types,
        "layer_norm_eps": config.norm.epsilon,
        **written(config, _LAYERS),
    }


def _table(kind: str, net: Pure) -> Table:
    names = {"tokens": "word", "positions": "position", "types": "token_type"}
    encoder: Table = {
        "embeddings": {
            **{ours: table(f"embeddings.{theirs}_embeddings") for ours, theirs in names.items()},
            "norm": norm("embeddings.LayerNorm"),
        },
        "stack": _stack("self", "attention.output.LayerNorm", "output.LayerNorm"),
    }
    return {"encoder": encoder, **_HEADS[kind]} if has_head(net) else encoder


def _stack(attention: str, attention_norm: str, feed_forward_norm: str) -> Table:
    """Returns the sources of layers, also of ViT, by the names that differ."""
    layer = "encoder.layer.{}"
    query, key, value = (f"{layer}.attention.{attention}.{name}" for name in ("query", "key", "value"))
    return {
        "layers": {
            "attention": self_attention(query, key, value, f"{layer}.attention.output.dense"),
            "attention_norm": norm(f"{layer}.{attention_norm}"),
            "feed_forward": {"up": linear(f"{layer}.intermediate.dense"), "down": linear(f"{layer}.output.dense")},
            "feed_forward_norm": norm(f"{layer}.{feed_forward_norm}"),
        }
    }


def _copies(kind: str, net: Pure) -> dict[str, str]:
    head = {"bert": "cls.predictions", "roberta": "lm_head"}[kind]
    words = {f"{head}.decoder.weight": "embeddings.word_embeddings.weight"}
    return words | {f"{head}.decoder.bias": f"{head}.bias"} if has_head(net) else {}


def _distilbert(settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    names = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    settings = renamed(settings, names)
    fields, rows = read(settings, _OF_DISTILBERT), get(settings, "max_position_embeddings", 512)
    config = families.bert(get(settings, "vocab_size", 30522), **fields, max_positions=rows, num_token_types=0)
    if "vocab_layer_norm.weight" not in shapes:
        return pure(models.make_encoder, config)
    require(settings, tie_word_embeddings=True)
    return pure(models.MaskedLanguageModel, config)


def _settings_of_distilbert(net: Pure) -> Settings:
    return {
        "architectures": ["DistilBertForMaskedLM" if has_head(net) else "DistilBertModel"],
        "vocab_size": net.config.vocab_size,
        "max_position_embeddings": net.config.max_positions,
        **written(net.config, _OF_DISTILBERT),
    }


def _table_of_distilbert(net: Pure) -> Table:
    layer = "transformer.layer.{}"
    projections = (f"{layer}.attention.{name}_lin" for name in ("q", "k", "v", "out"))
    encoder: Table = {
        "embeddings": {
            "tokens": table("embeddings.word_embeddings"),
            "positions": table("embeddings.position_embeddings"),
            "norm": norm("embeddings.LayerNorm"),
        },
        "stack": {
            "layers": {
                "attention": self_attention(*projections),
                "attention_norm": norm(f"{layer}.sa_layer_norm"),
                "feed_forward": {"up": linear(f"{layer}.ffn.lin1"), "down": linear(f"{layer}.ffn.lin2")},
                "feed_forward_norm": norm(f"{layer}.output_layer_norm"),
            }
        },
    }
    head: Table = {
        "transform": linear("vocab_transform"),
        "norm": norm("vocab_layer_norm"),
        "output_bias": array("vocab_projector.bias"),
    }
    return {"encoder": encoder, **head} if has_head(net) else encoder


def _vit(settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    require(settings, qkv_bias=True)
    config = families.vit(
        _image_size(settings),
        norm=choices.LayerNorm(get(settings, "layer_norm_eps", 1e-12)),
        **read(settings, _OF_VIT),
    )
    classes = shapes.get("classifier.bias")
    if classes is None:
        return pure(models.make_encoder, config)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return pure(models.VisionTransformer, models.VisionTransformerConfig(**fields, num_classes=classes[0]))


def _image_size(settings: Settings) -> tuple[int, int]:
    size = settings.get("image_size", 224)
    both = tuple(size) if isinstance(size, list) else (size, size)
    if len(both) != 2 or any(type(x) is not int for x in both):
        raise DataError(f"image_size in config.json must be one or two integers, got {size!r}")
    return both


def _settings_of_vit(net: Pure) -> Settings:
    config = net.config
    height, width = config.image_size
    head = {}
    if has_head(net):
        labels = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
        head = {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
    return head | {
        "architectures": ["ViTForImageClassification" if has_head(net) else "ViTModel"],
        "image_size": height if height == width else [height, width],
        "layer_norm_eps": config.norm.epsilon,
        **written(config, _OF_VIT),
    }


def _table_of_vit(net: Pure) -> Table:
    encoder: Table = {
        "embeddings": {
            "projection": linear("embeddings.patch_embeddings.projection", PATCHES),
            "class_vector": array("embeddings.cls_token", packing=ONE_TOKEN),
            "positions": {"table": array("embeddings.position_embeddings", packing=ONE_ROW)},
        },
        "stack": _stack("attention", "layernorm_before", "layernorm_after"),
        "norm": norm("layernorm"),
    }
    return {"encoder": encoder, "output": linear("classifier")} if has_head(net) else encoder


_KINDS = {
    "bert": ("bert", "Bert"),
    "roberta": ("roberta", "Roberta"),
    "xlm-roberta": ("roberta", "XLMRoberta"),
    "camembert": ("roberta", "Camembert"),
}
"""The kind that a family is of, and the name in its classes."""

FAMILIES = {
    family: Family(
        net=functools.partial(_net, kind),
        settings=functools.partial(_settings, kind, name),
        table=functools.partial(_table, kind),
        prefix=f"{kind}.",
        heads=("cls.", "lm_head.", "classifier.", "qa_outputs."),
        copies=functools.partial(_copies, kind),
        ignored=(
            r"embeddings\.(position_ids|token_type_ids)",
            r"(pooler|cls\.seq_relationship|classifier|qa_outputs)\..*",
        ),
        renamed=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
    )
    for family, (kind, name) in _KINDS.items()
}
FAMILIES |= {
    "distilbert": Family(
        net=_distilbert,
        settings=_settings_of_distilbert,
        table=_table_of_distilbert,
        prefix="distilbert.",
        heads=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
        copies=lambda net: {"vocab_projector.weight": "embeddings.word_embeddings.weight"} if has_head(net) else {},
        ignored=(r"embeddings\.position_ids", r"(pre_classifier|classifier|qa_outputs)\..*"),
    ),
    "vit": Family(
        net=_vit,
        settings=_settings_of_vit,
        table=_table_of_vit,
        prefix="vit.",
        heads=("classifier.",),
        ignored=(r"pooler\..*", r"embeddings\.mask_token"),
    ),
}
"""The families of this file by their ``model_type``."""
