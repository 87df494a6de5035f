"""The settings of a language model, and the built-in one. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config import PLACE, at_least
from jaxformer.data.special_tokens import MIN_SUBWORDS
from jaxformer.files import local_path
from jaxformer.models.config import LanguageModelConfig
from jaxformer.tasks.config import SamplingConfig, TaskConfig


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The text, its tokens, and the windows that are trained on."""

    text: str = ""
    """The training text, UTF-8; several files are separated by commas and read as one text."""
    validation: str = ""
    """A text to validate on; by default, `held_out` of the training text is set aside."""
    held_out: float = 0.1
    """The last part of the text, set aside for validation if no file is named."""
    tokenizer: Literal["characters", "unigram", "bpe"] = "characters"
    """The tokens: single characters, or subwords by sentencepiece."""
    vocab_size: int = 1000
    """Subword pieces; characters are as many as the text has."""
    length: int = 256
    """Tokens of a window: the context that the model learns from."""
    batch_size: int = 32
    """Windows a batch."""
    directory: str = dataclasses.field(default="", metadata=PLACE)
    """Relative paths start here; default: the working directory, and for files that are not in it the environment's
    JAXFORMER_DATA."""
    cache: str = dataclasses.field(default="", metadata=PLACE)
    """The folder of tokenized texts, by hash; by default `data` in the user's cache (JAXFORMER_CACHE)."""

    def __post_init__(self) -> None:
        local_path(self.cache)
        at_least(1, self, "length", "batch_size")
        at_least(1 if self.tokenizer == "characters" else MIN_SUBWORDS, self, "vocab_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig(SamplingConfig):
    """Settings of the continuation of texts."""

    max_tokens: int = 200
    """Tokens to add to a prompt."""
    temperature: float = 0.8
    """Logits are divided by it before a token is drawn; 0 takes the most probable token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "max_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelingConfig(TaskConfig):
    """A complete language modeling experiment."""

    task: ClassVar[str] = "language_model"

    name: str = "language model"
    """The run's name in logs and pictures."""
    model: LanguageModelConfig = LanguageModelConfig()
    """The network; a vocabulary size of 0 is the tokenizer's."""
    data: DataConfig = DataConfig()
    """Text and windows."""
    decode: DecodeConfig = DecodeConfig()
    """Generation."""
