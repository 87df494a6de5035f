"""The settings of a masked language model, and its built-in configurations. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.models.config import EncoderConfig
from jaxformer.reprs import brief
from jaxformer.tasks import language_model
from jaxformer.tasks.config import TaskConfig, check_length
from jaxformer.training.config import AdamConfig, LinearDecay, TrainConfig


@dataclasses.dataclass(frozen=True)
class DataConfig(language_model.DataConfig):
    """The text, whose lines are packed into rows, and the fraction of masked tokens."""

    held_out: int | float = 0.05
    """The fraction of the lines held out for validation if no file is named, or their number, an integer from 1; equal
    lines stay together."""
    tokenizer: Literal["characters", "unigram", "bpe", "pretrained"] = "unigram"
    """The kind of tokens: single characters, subwords by sentencepiece, or the tokens of `init_from`'s pretrained
    model."""
    vocab_size: int = 8000
    """The number of subwords in the vocabulary; with characters, the text determines it."""
    length: int = 128
    """The number of tokens per row. Lines are packed into rows, each with a class token and an end token; longer lines
    are split."""
    mask_rate: float = 0.15
    """The fraction of a row's tokens to predict."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpora:
            raise ConfigError("corpora has no effect here: name all files of a masked language model in text, as a,b")
        if not 0 < self.mask_rate <= 1:
            raise ConfigError(f"mask_rate must be more than 0 and at most 1, got {self.mask_rate}")
        if self.length < 3:
            raise ConfigError(f"length must be at least 3, for a class token, a token and an end, got {self.length}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelingConfig(TaskConfig):
    """A complete masked language modeling experiment."""

    task: ClassVar[str] = "masked_language_model"

    name: str = "masked language model"
    """The run's name in logs and plots."""
    model: EncoderConfig = EncoderConfig()
    """The encoder; a vocabulary size of 0 is replaced by the tokenizer's."""
    data: DataConfig = DataConfig()
    """Text and rows."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.model.positions, choices.Normalized):
            raise ConfigError("model.positions must not be 'normalized', t / (N - 1), in rows that hold several texts")

    def check(self) -> None:
        check_length("data.length", self.data.length, self.model.length_limit)


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
