"""The vision Transformer: an image encoder, alone or with a classification head."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxformer import models
from jaxformer.errors import DataError
from jaxformer.interop.bert import layer_settings, stack
from jaxformer.interop.family import Family
from jaxformer.interop.packing import ONE_ROW, ONE_TOKEN, PATCHES, Shape, Table, array, linear, norm
from jaxformer.interop.settings import Settings, activation, get, require
from jaxformer.models import choices, families
from jaxformer.modules.pure import Pure, pure


def _net(settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    require(settings, qkv_bias=True)
    config = families.vit(
        _image_size(settings),
        patch_size=get(settings, "patch_size", 16),
        num_channels=get(settings, "num_channels", 3),
        d_model=get(settings, "hidden_size", 768),
        num_heads=get(settings, "num_attention_heads", 12),
        d_ff=get(settings, "intermediate_size", 3072),
        num_layers=get(settings, "num_hidden_layers", 12),
        activation=activation(settings, "hidden_act", "gelu"),
        norm=choices.LayerNorm(get(settings, "layer_norm_eps", 1e-12)),
        dropout=get(settings, "hidden_dropout_prob", 0.0),
        attention_dropout=get(settings, "attention_probs_dropout_prob", 0.0),
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


def _has_head(net: Pure) -> bool:
    return net.model is models.VisionTransformer


def _settings(net: Pure) -> Settings:
    config = net.config
    height, width = config.image_size
    head = {}
    if _has_head(net):
        labels = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
        head = {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
    return head | {
        "architectures": ["ViTForImageClassification" if _has_head(net) else "ViTModel"],
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.num_channels,
        **layer_settings(net),
    }


def _table(net: Pure) -> Table:
    encoder: Table = {
        "embeddings": {
            "projection": linear("embeddings.patch_embeddings.projection", PATCHES),
            "class_vector": array("embeddings.cls_token", packing=ONE_TOKEN),
            "positions": {"table": array("embeddings.position_embeddings", packing=ONE_ROW)},
        },
        "stack": stack("attention", "layernorm_before", "layernorm_after"),
        "norm": norm("layernorm"),
    }
    return {"encoder": encoder, "output": linear("classifier")} if _has_head(net) else encoder


FAMILIES = {
    "vit": Family(
        net=_net,
        settings=_settings,
        table=_table,
        prefix="vit.",
        heads=("classifier.",),
        ignored=(r"pooler\..*", r"embeddings\.mask_token"),
    )
}
"""The families of this file by their ``model_type``."""
