"""The settings of token tagging, and its built-in configurations. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from jaxformer.models.config import TokenClassifierConfig
from jaxformer.reprs import brief
from jaxformer.tasks.classification import config as classification
from jaxformer.tasks.classification.config import LabelingConfig
from jaxformer.tasks.config import check_pair
from jaxformer.tasks.masked_language_model import config as encoders


@dataclasses.dataclass(frozen=True)
class DataConfig(classification.DataConfig):
    """Tables with a word and its label on each line, their tokens and batches."""

    train: str = ""
    """The training file, UTF-8: a word and its label on each line, and a blank line after each sentence."""
    held_out: int | float = 0.1
    """The fraction of the training sentences held out for validation if no file is named, or their number, an integer
    from 1; equal sentences stay together."""
    max_examples: int = 0
    """The number of training sentences to use, chosen by a hash after validation sentences are held out; 0 for all."""
    columns: tuple[int, ...] = (0, 1)
    """The columns of the word and of its label, counted from 0."""
    separator: Literal["tab", "space"] = "tab"
    """The separator of columns."""
    max_length: int = 128
    """The maximum number of tokens of a row, class token and end token included; longer sentences are split between
    words."""

    __repr__ = brief

    def check_columns(self) -> None:
        check_pair(self.columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingConfig(LabelingConfig):
    """A complete token tagging experiment."""

    task: ClassVar[str] = "tagging"

    name: str = "tagging"
    """The run's name in logs and plots."""
    model: TokenClassifierConfig = TokenClassifierConfig()
    """The encoder; a vocabulary size of 0 is replaced by the tokenizer's."""
    data: DataConfig = DataConfig()
    """Words and labels."""

    __repr__ = brief


def tagging() -> TaggingConfig:
    """Labels for the words of your own texts, from the encoder of `masked_language_model`: give --data.train."""
    config = classification.classification()
    return TaggingConfig(
        model=TokenClassifierConfig(**vars(encoders.SMALL)), optimizer=config.optimizer, train=config.train
    )


def tiny() -> TaggingConfig:
    """Labels for words, from the encoder of `masked_language_model:tiny` (2 layers, D = 128)."""
    model = TokenClassifierConfig(**vars(encoders.TINY))
    return dataclasses.replace(tagging(), name="tagging-tiny", model=model, data=DataConfig(num_shapes=3))
