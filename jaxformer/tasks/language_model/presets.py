"""Built-in configurations of language models."""

from __future__ import annotations

import dataclasses

from jaxformer.models.config import LanguageModelConfig
from jaxformer.tasks.language_model.config import DataConfig, LanguageModelingConfig
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig


def language_model() -> LanguageModelingConfig:
    """A character-level language model for your own text, at the size `small`: give --data.text."""
    return _sized("language model", d_model=128, num_heads=4, num_layers=4)


def tiny() -> LanguageModelingConfig:
    """The smallest character-level model, 0.1 M parameters: minutes on two CPU cores (2 layers, D = 64)."""
    return _sized("language-model-tiny", d_model=64, num_heads=2, num_layers=2, steps=1000)


def small() -> LanguageModelingConfig:
    """A character-level model for a few megabytes of text, on a laptop: 0.8 M parameters (4 layers, D = 128)."""
    return dataclasses.replace(language_model(), name="language-model-small")


def base() -> LanguageModelingConfig:
    """A subword model for a gigabyte of text, on an accelerator: GPT-2's smallest shape (12 layers, D = 768)."""
    return _subwords(_sized("language-model-base", d_model=768, num_heads=12, num_layers=12, steps=100_000))


def big() -> LanguageModelingConfig:
    """A subword model for gigabytes of text, on accelerators: GPT-2 medium's shape (24 layers, D = 1024)."""
    return _subwords(_sized("language-model-big", d_model=1024, num_heads=16, num_layers=24, steps=200_000))


def _sized(name: str, *, d_model: int, num_heads: int, num_layers: int, steps: int = 3000) -> LanguageModelingConfig:
    return LanguageModelingConfig(
        name=name,
        model=LanguageModelConfig(
            d_model=d_model,
            num_heads=num_heads,
            d_ff=4 * d_model,
            num_layers=num_layers,
            max_positions=256,
            dropout=0.1,
        ),
        data=DataConfig(length=128, batch_size=32),
        optimizer=AdamConfig(
            learning_rate=2e-3,
            schedule=CosineDecay(),
            warmup_steps=100,
            b2=0.99,
            epsilon=1e-8,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        train=TrainConfig(steps=steps, validate_every=500, checkpoint_every=500, keep_last=2),
    )


def _subwords(config: LanguageModelingConfig) -> LanguageModelingConfig:
    """Returns the configuration for subwords and windows of 1,024 tokens."""
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, max_positions=1024),
        data=dataclasses.replace(config.data, tokenizer="bpe", vocab_size=32_000, length=1024),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=6e-4, warmup_steps=2000, b2=0.95),
    )
