"""Llama, and Mistral, Qwen2 and Qwen3, which differ from it in biases and norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from jaxformer import models
from jaxformer.config import kind_of
from jaxformer.errors import DataError
from jaxformer.interop.family import Family, Settings, get, read, require, written
from jaxformer.interop.packing import TRANSPOSED, Shape, Table, array, linear, norm, self_attention, table
from jaxformer.models import choices, families
from jaxformer.modules.pure import Pure, pure

_FIELDS = {
    "vocab_size": ("vocab_size", 32000),
    "d_model": ("hidden_size", 4096),
    "num_heads": ("num_attention_heads", 32),
    "d_ff": ("intermediate_size", 11008),
    "num_layers": ("num_hidden_layers", 32),
    "activation": ("hidden_act", "silu"),
    "tie_embeddings": ("tie_word_embeddings", False),
    "attention_dropout": ("attention_dropout", 0.0),
}
_OF_QWEN = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
_DEFAULTS = {
    "llama": {"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048},
    "mistral": {
        "vocab_size": 32000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "qwen2": _OF_QWEN,
    "qwen3": _OF_QWEN | {"head_dim": 128},
}
_WINDOW = 4096
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ARCHITECTURES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def _net(kind: str, settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    settings = {**_DEFAULTS[kind], **settings}
    require(settings, is_causal=True)  # bidirectional models, such as of embeddings, say False
    if kind != "llama":  # transformers does not read it there
        require(settings, mlp_bias=False)
    if kind == "mistral":  # the same
        require(settings, attention_bias=False)
    biased = kind == "qwen2" or get(settings, "attention_bias", False)
    fields = read(settings, _FIELDS)
    config = families.llama(
        **fields,
        num_kv_heads=get(settings, "num_key_value_heads", fields["num_heads"]),
        head_dim=get(settings, "head_dim", 0) or None,
        feed_forward=choices.Gated(bias=get(settings, "mlp_bias", False)),
        norm=choices.RMSNorm(get(settings, "rms_norm_eps", 1e-6)),
        positions=_rotary(settings),
        attention_bias=biased,
        attention_output_bias=biased and kind != "qwen2",
        qk_norm=kind == "qwen3",
        attention_window=_window(kind, settings, fields["num_layers"]),
        dropout=0.0,
        max_positions=get(settings, "max_position_embeddings", 2048),
    )
    return pure(models.LanguageModel, config)


def _window(kind: str, settings: Settings, num_layers: int) -> int | None:
    """Returns the window that all layers have, or None."""
    if kind == "llama":
        require(settings, use_sliding_window=False)
        return None
    used = kind == "mistral" or get(settings, "use_sliding_window", False)
    absent = settings.get("sliding_window", _WINDOW) is None
    window = None if absent or not used else get(settings, "sliding_window", _WINDOW)
    kinds = settings.get("layer_types")
    if kinds is None:
        full = 0 if kind == "mistral" else get(settings, "max_window_layers", 28)
        if window is not None and 0 < full < num_layers:
            raise DataError(
                f"max_window_layers in config.json must be 0 or {num_layers}, so that all layers have a sliding window "
                f"or none, got {full}"
            )
        return window if full < num_layers else None
    if kinds == [_FULL] * num_layers:
        if kind == "mistral" and window is not None:  # transformers has the window then, whatever the layers say
            raise DataError(f"sliding_window in config.json must be null if all layer_types are {_FULL}, got {window}")
        return None
    if kinds != [_SLIDING] * num_layers or window is None:
        raise DataError(
            f"layer_types in config.json must be {_FULL} for all {num_layers} layers or, with a sliding window, "
            f"{_SLIDING} for all"
        )
    return window


def _rotary(settings: Settings) -> choices.Rotary:
    """Returns the rotary positions, from the settings of transformers 5 or from the two of earlier versions."""
    scaling = settings.get("rope_scaling") or settings.get("rope_parameters") or {}  # as transformers 5 does
    if not isinstance(scaling, Mapping) or any(isinstance(value, Mapping) for value in scaling.values()):
        raise DataError(f"rope_parameters in config.json must be one object for all layers, got {scaling!r}")
    base = get(scaling, "rope_theta", get(settings, "rope_theta", 10_000.0))
    kind = get(scaling, "rope_type", get(scaling, "type", "default"))
    if get(settings, "partial_rotary_factor", get(scaling, "partial_rotary_factor", 1.0)) != 1.0:
        raise DataError("partial_rotary_factor in config.json must be 1.0 for the models here")
    if kind == "default":
        return choices.Rotary(base)
    if kind not in ("linear", "llama3", "yarn"):
        raise DataError(f"the rope_type in config.json must be default, linear, llama3 or yarn, got {kind!r}")
    name = "original_max_position_embeddings"  # transformers 5 reads it outside of the object, too
    trained = get(scaling, name, get(settings, name, get(settings, "max_position_embeddings", 0)))
    factors = {"linear": 1.0, "llama3": 8.0, "yarn": get(settings, "max_position_embeddings", 0) / max(trained, 1)}
    factor = get(scaling, "factor", factors[kind])
    if factor == 1:  # no scaling
        return choices.Rotary(base)
    if kind == "linear":
        return choices.Rotary(base, scaling=choices.LinearScaling(factor))
    if kind == "yarn":
        _check_yarn(scaling, factor)
    else:
        require(scaling, low_freq_factor=1.0, high_freq_factor=4.0)
    if get(settings, name, trained) != trained:
        raise DataError(f"{name} in config.json must be the one of rope_parameters, {trained}, got {settings[name]}")
    of_kind = {"yarn": choices.YaRNScaling, "llama3": choices.Llama3Scaling}[kind]
    return choices.Rotary(base, scaling=of_kind(factor, trained))


def _check_yarn(scaling: Settings, factor: float) -> None:
    """Checks that YaRN has the bounds and the amplitude of the paper."""
    require(scaling, beta_fast=32, beta_slow=1, truncate=True)
    amplitude = 0.1 * math.log(max(factor, 1)) + 1
    if scaling.get("attention_factor") is None:
        if scaling.get("mscale") and scaling.get("mscale_all_dim"):
            raise DataError("mscale and mscale_all_dim in config.json must not be given for the models here")
    elif not math.isclose(get(scaling, "attention_factor", amplitude), amplitude, rel_tol=1e-6):
        raise DataError(f"attention_factor in config.json must be {amplitude} for the models here")


def _settings(kind: str, net: Pure) -> Settings:
    config, rotary = net.config, net.config.positions
    if not isinstance(rotary, choices.Rotary):
        raise ValueError(f"positions must be rotary in a file of {kind}, got {kind_of(rotary)}")
    positions = {"rope_theta": rotary.base}
    parameters: dict[str, object] = {"rope_type": "default", **positions}
    match rotary.scaling:
        case choices.NTKScaling():
            raise ValueError(f"the scaling must be none, linear, llama3 or yarn in a file of {kind}, got 'ntk'")
        case choices.YaRNScaling(factor, trained_length):
            parameters |= {"rope_type": kind_of(rotary.scaling), "factor": factor}
            parameters["original_max_position_embeddings"] = trained_length
            if isinstance(rotary.scaling, choices.Llama3Scaling):
                parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        case choices.LinearScaling(factor):
            parameters |= {"rope_type": "linear", "factor": factor}
    others: dict[str, object] = {} if kind == "qwen2" else {"attention_bias": config.attention_bias}
    window = config.attention_window
    of_qwen = {"use_sliding_window": window is not None}
    if window is not None:
        of_qwen |= {"sliding_window": window, "max_window_layers": 0}
    others |= {"mistral": {"sliding_window": window}, "llama": {"mlp_bias": config.feed_forward.bias}}.get(
        kind, of_qwen
    )
    return {
        "architectures": [f"{_ARCHITECTURES[kind]}ForCausalLM"],
        **written(config, _FIELDS),
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "head_dim": config.head_dim or config.d_model // config.num_heads,
        "rms_norm_eps": config.norm.epsilon,
        "rope_parameters": parameters,
        **positions,  # for readers of the older form
        "rope_scaling": None if rotary.scaling is None else parameters,
        **others,
    }


def _table(net: Pure) -> Table:
    layer = "layers.{}"
    attention = self_attention(*(f"{layer}.self_attn.{x}_proj" for x in "qkvo"))
    norms = {"query_norm": norm(f"{layer}.self_attn.q_norm"), "key_norm": norm(f"{layer}.self_attn.k_norm")}
    return {
        "decoder": {
            "embeddings": {"tokens": table("embed_tokens")},
            "stack": {
                "layers": {
                    "attention": {**attention, **norms},
                    "attention_norm": norm(f"{layer}.input_layernorm"),
                    "feed_forward": {x: linear(f"{layer}.mlp.{x}_proj") for x in ("gate", "up", "down")},
                    "feed_forward_norm": norm(f"{layer}.post_attention_layernorm"),
                }
            },
            "norm": norm("norm"),
            "output": {"kernel": array("lm_head.weight", packing=TRANSPOSED)},
        }
    }


FAMILIES = {
    kind: Family(
        net=functools.partial(_net, kind),
        settings=functools.partial(_settings, kind),
        table=_table,
        prefix="model.",
        heads=("lm_head.",),
        copies=lambda net: {"lm_head.weight": "embed_tokens.weight"} if net.config.tie_embeddings else {},
        ignored=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # computed
    )
    for kind in _DEFAULTS
}
"""The families of this file by their ``model_type``."""
