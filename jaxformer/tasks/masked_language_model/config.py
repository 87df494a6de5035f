"""The settings of a masked language model. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.models.config import EncoderConfig
from jaxformer.reprs import brief
from jaxformer.tasks import language_model
from jaxformer.tasks.config import TaskConfig, check_length


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
