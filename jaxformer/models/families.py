"""The settings of published model families, as functions that return configurations.

Each takes the vocabulary size and the sizes of a checkpoint (`d_model`, `num_heads`, `d_ff`, layers, ...) and sets what
all members of its family have in common. `docs/families.md` has the same settings as a table.
"""

from __future__ import annotations

import dataclasses

from jaxformer.config import flat, to_data
from jaxformer.models import choices
from jaxformer.models.config import EncoderConfig, EncoderDecoderConfig, ImageEncoderConfig, LanguageModelConfig


def marian(vocab_size: int, **sizes: object) -> EncoderDecoderConfig:
    """Returns the shape of Marian and OPUS-MT (Junczys-Dowmunt et al. 2018), with the swish of OPUS-MT."""
    family = EncoderDecoderConfig(
        positions=choices.Sinusoidal("halves"), activation="silu", attention_bias=True, output_bias=True
    )
    return _translator(family, vocab_size, sizes)


def bart(vocab_size: int, **sizes: object) -> EncoderDecoderConfig:
    """Returns the shape of BART (Lewis et al. 2020); mBART has ``norm_position="pre"`` and scales embeddings."""
    family = EncoderDecoderConfig(
        positions=choices.Learned(offset=2),
        embedding_scale=1.0,
        embedding_norm=True,
        activation="gelu",
        attention_bias=True,
        output_bias=True,
    )
    return _translator(family, vocab_size, sizes)


_T5 = EncoderDecoderConfig(
    positions=choices.T5(),
    norm=choices.RMSNorm(1e-6),
    norm_position="pre",
    embedding_scale=1.0,
    attention_scale=1.0,
    feed_forward=choices.Plain(bias=False),
)


def t5(vocab_size: int, **sizes: object) -> EncoderDecoderConfig:
    """Returns the shape of T5 1.0 (Raffel et al. 2020)."""
    config = _translator(_T5, vocab_size, sizes)
    return dataclasses.replace(config, output_scale=sizes.get("output_scale", config.d_model**-0.5))


def t5_v1_1(vocab_size: int, **sizes: object) -> EncoderDecoderConfig:
    """Returns the shape of T5 1.1, mT5 and Flan-T5: gated feed-forward networks and an untied output projection."""
    family = dataclasses.replace(_T5, feed_forward=choices.Gated(bias=False), activation="gelu_tanh")
    return _translator(dataclasses.replace(family, tie_embeddings="inputs"), vocab_size, sizes)


def _translator(family: EncoderDecoderConfig, vocab_size: int, sizes: dict[str, object]) -> EncoderDecoderConfig:
    return dataclasses.replace(family, source_vocab_size=vocab_size, target_vocab_size=vocab_size, **sizes)


_BERT = EncoderConfig(
    positions=choices.Learned(),
    embedding_scale=1.0,
    embedding_norm=True,
    num_token_types=2,
    norm=choices.LayerNorm(1e-12),
    activation="gelu",
    attention_bias=True,
)


def bert(vocab_size: int, **sizes: object) -> EncoderConfig:
    """Returns the shape of BERT (Devlin et al. 2019), without output heads."""
    return dataclasses.replace(_BERT, vocab_size=vocab_size, **sizes)


def roberta(vocab_size: int, **sizes: object) -> EncoderConfig:
    """Returns the shape of RoBERTa (Liu et al. 2019), without output heads.

    Pass its positions, which do not count padding: ``positions = cumsum(valid) * valid - 1``.
    """
    family = dataclasses.replace(
        _BERT, positions=choices.Learned(offset=2), num_token_types=1, norm=choices.LayerNorm()
    )
    return dataclasses.replace(family, vocab_size=vocab_size, **sizes)


def gpt2(vocab_size: int, **sizes: object) -> LanguageModelConfig:
    """Returns the shape of GPT-2 (Radford et al. 2019)."""
    family = LanguageModelConfig(embedding_scale=1.0, activation="gelu_tanh", attention_bias=True)
    return dataclasses.replace(family, vocab_size=vocab_size, **sizes)


def llama(vocab_size: int, **sizes: object) -> LanguageModelConfig:
    """Returns the shape of Llama (Touvron et al. 2023).

    Mistral and Qwen differ in sizes, biases, `qk_norm` and `attention_window`.
    """
    family = LanguageModelConfig(
        positions=choices.Rotary(),
        norm=choices.RMSNorm(),
        embedding_scale=1.0,
        feed_forward=choices.Gated(bias=False),
        activation="silu",
        tie_embeddings=False,
    )
    return dataclasses.replace(family, vocab_size=vocab_size, **sizes)


def vit(image_size: tuple[int, int], **sizes: object) -> ImageEncoderConfig:
    """Returns the shape of the vision Transformer (Dosovitskiy et al. 2021), without its classification head."""
    family = ImageEncoderConfig(
        norm=choices.LayerNorm(1e-12), norm_position="pre", activation="gelu", attention_bias=True
    )
    return dataclasses.replace(family, image_size=image_size, **sizes)


def table() -> str:
    """Returns the settings in which families differ, as a Markdown table; sizes are left out."""
    sizes = {"d_model": 64}
    configs = {
        "Marian": marian(8, **sizes),
        "BART": bart(8, **sizes),
        "T5 1.0": t5(8, **sizes),
        "T5 1.1": t5_v1_1(8, **sizes),
        "BERT": bert(8, **sizes),
        "RoBERTa": roberta(8, **sizes),
        "GPT-2": gpt2(8, **sizes),
        "Llama": llama(8, **sizes),
        "ViT": vit((32, 32), **sizes),
    }
    settings = [flat(to_data(config)) for config in configs.values()]
    names = dict.fromkeys(name for known in settings for name in known)
    rows = [f"| setting | {' | '.join(configs)} |", "|---" * (len(configs) + 1) + "|"]
    for name in names:
        values = [_text(known[name], known["d_model"]) if name in known else "" for known in settings]
        if name not in _SIZES and len(set(values)) > 1:
            rows.append(f"| `{name}` | {' | '.join(values)} |")
    return "\n".join(rows)


_SIZES = (
    *("d_model", "vocab_size", "source_vocab_size", "target_vocab_size", "image_size", "patch_size", "num_channels"),
    *("num_layers", "num_encoder_layers", "num_decoder_layers", "max_positions", "attention_window", "causal", "kind"),
)
"""The settings that `table` leaves out."""


def _text(value: object, d_model: int) -> str:
    """Returns a setting as text that does not depend on the sizes used in `table`."""
    return "d_model^-0.5" if value == d_model**-0.5 else str(value)
