"""Built-in configurations of masked language models."""

from __future__ import annotations

import dataclasses

from jaxformer.models import choices
from jaxformer.models.config import EncoderConfig
from jaxformer.tasks.masked_language_model.config import DataConfig, MaskedLanguageModelingConfig
from jaxformer.training.config import AdamConfig, LinearDecay, TrainConfig

SMALL = EncoderConfig(
    d_model=256,
    num_heads=4,
    d_ff=1024,
    num_layers=4,
    norm_position="pre",
    positions=choices.Learned(),
    max_positions=128,
    activation="gelu",
    attention_bias=True,
    dropout=0.1,
)
TINY = dataclasses.replace(SMALL, d_model=128, num_heads=2, d_ff=512, num_layers=2)


def masked_language_model() -> MaskedLanguageModelingConfig:
    """A subword masked language model for your own text, 5 M parameters (4 layers, D = 256): give --data.text."""
    return MaskedLanguageModelingConfig(
        model=SMALL,
        data=DataConfig(batch_size=64),
        optimizer=AdamConfig(
            learning_rate=1e-3, schedule=LinearDecay(), warmup_steps=500, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0
        ),
        train=TrainConfig(steps=10_000, validate_every=1000, checkpoint_every=1000, keep_last=2),
    )


def tiny() -> MaskedLanguageModelingConfig:
    """The smallest masked language model, 1.5 M parameters, for two CPU cores (2 layers, D = 128)."""
    config = masked_language_model()
    return dataclasses.replace(config, name="masked-language-model-tiny", model=TINY)


def base() -> MaskedLanguageModelingConfig:
    """BERT's base shape, 110 M parameters, for gigabytes of text on accelerators (12 layers, D = 768)."""
    config = masked_language_model()
    return dataclasses.replace(
        config,
        name="masked-language-model-base",
        model=dataclasses.replace(SMALL, d_model=768, num_heads=12, d_ff=3072, num_layers=12, max_positions=512),
        data=DataConfig(tokenizer="bpe", vocab_size=30_000, length=512, batch_size=256),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=1e-4, warmup_steps=10_000),
        train=dataclasses.replace(config.train, steps=1_000_000, validate_every=10_000, checkpoint_every=10_000),
    )
