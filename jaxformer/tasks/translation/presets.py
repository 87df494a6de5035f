"""Built-in configurations of translation: `jaxformer train demo` needs no file."""

from __future__ import annotations

import dataclasses

from jaxformer.models.config import EncoderDecoderConfig
from jaxformer.tasks.translation.config import DataConfig, DecodeConfig, TranslationConfig
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig


def demo() -> TranslationConfig:
    """English to French from a built-in grammar: three to six minutes on two cores, BLEU above 97 on new sentences."""
    return TranslationConfig(
        name="demo",
        model=EncoderDecoderConfig(
            d_model=128,
            num_heads=4,
            d_ff=256,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dropout=0.0,
            norm_position="pre",
        ),
        data=DataConfig(
            corpus="grammar",
            source_language="en",
            target_language="fr",
            vocab_size=2000,
            tokens_per_batch=2048,
            num_shapes=3,
            max_length=64,
        ),
        optimizer=AdamConfig(learning_rate=3e-3, schedule=CosineDecay(), warmup_steps=200),
        train=TrainConfig(steps=2000, validate_every=500, checkpoint_every=500, keep_last=2),
        decode=DecodeConfig(validation_sentences=200),
    )


def translation() -> TranslationConfig:
    """Translation between your own two files, at the size `small`: give --data.source and --data.target."""
    return _sized("translation", d_model=256, num_heads=4, d_ff=1024, num_layers=4, dropout=0.2, learning_rate=2e-3)


def tiny() -> TranslationConfig:
    """The smallest model, 2 M parameters, for two CPU cores and first trials (2 + 2 layers, D = 128)."""
    sizes = {"d_model": 128, "num_heads": 4, "d_ff": 512, "num_layers": 2, "dropout": 0.1}
    config = _sized("translation-tiny", **sizes, learning_rate=3e-3, steps=5000, tokens_per_batch=2048)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, num_shapes=3))


def small() -> TranslationConfig:
    """Ten thousand to a million pairs, on a GPU or many cores: 9.4 M parameters (4 + 4 layers, D = 256)."""
    return dataclasses.replace(translation(), name="translation-small")


def base() -> TranslationConfig:
    """Millions of pairs on an accelerator: the paper's base model, pre-norm, 61 M parameters (D = 512)."""
    sizes = {"d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6, "dropout": 0.1, "vocab_size": 32_000}
    return _sized("translation-base", **sizes, learning_rate=7e-4, steps=100_000, tokens_per_batch=25_000)


def big() -> TranslationConfig:
    """Millions of pairs on several accelerators: the paper's big model, pre-norm, 209 M parameters (D = 1024)."""
    sizes = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "num_layers": 6, "dropout": 0.3, "vocab_size": 32_000}
    return _sized("translation-big", **sizes, learning_rate=5e-4, steps=300_000, tokens_per_batch=25_000)


def _sized(
    name: str,
    *,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_layers: int,
    dropout: float,
    learning_rate: float,
    vocab_size: int = 8000,
    **budget: int,
) -> TranslationConfig:
    """Returns a configuration whose encoder and decoder have this shape; `budget` has steps and tokens_per_batch."""
    steps = budget.get("steps", 20_000)
    return TranslationConfig(
        name=name,
        model=EncoderDecoderConfig(
            d_model=d_model,
            num_heads=num_heads,
            d_ff=d_ff,
            num_encoder_layers=num_layers,
            num_decoder_layers=num_layers,
            dropout=dropout,
            norm_position="pre",
        ),
        data=DataConfig(vocab_size=vocab_size, tokens_per_batch=budget.get("tokens_per_batch", 4096)),
        optimizer=AdamConfig(learning_rate=learning_rate, warmup_steps=4000 if steps > 20_000 else 1000),
        train=TrainConfig(steps=steps, validate_every=500, checkpoint_every=500, patience=10),
        decode=DecodeConfig(validation_sentences=200),
    )
