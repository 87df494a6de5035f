"""The settings of text classification, and its built-in configurations. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
import operator
from typing import ClassVar, Literal, Self, TypeGuard

from jaxformer.config import at_least, check_held_out
from jaxformer.errors import ConfigError
from jaxformer.models.config import ClassifierConfig, EncoderConfig, TokenClassifierConfig
from jaxformer.reprs import brief
from jaxformer.tasks.config import (
    FREE_SETTINGS,
    DataFolders,
    TaskConfig,
    check_classes,
    check_equal,
    check_length,
    split_classes,
)
from jaxformer.tasks.masked_language_model import config as encoders
from jaxformer.tokenizers.special_tokens import MIN_SUBWORDS
from jaxformer.training.config import AdamConfig, LinearDecay, TrainConfig

SHAPE = tuple(field.name for field in dataclasses.fields(EncoderConfig) if field.name not in FREE_SETTINGS)
"""The model settings that must agree with those of the run that training starts from."""


@dataclasses.dataclass(frozen=True)
class DataConfig(DataFolders):
    """Files with a label and a text on each line, their tokens and batches."""

    train: str = ""
    """The training file, UTF-8."""
    validation: str = ""
    """A file to validate on; by default, `held_out` of the training file is held out."""
    test: str = ""
    """A file to score after training."""
    held_out: int | float = 0.1
    """The fraction of the training file held out for validation if no file is named, or the number of its lines, an
    integer from 1; equal texts stay together."""
    max_examples: int = 0
    """The number of training texts to use, chosen by a hash after validation texts are held out; 0 for all."""
    columns: tuple[int, ...] = (0, 1)
    """The columns of the label and of the text, counted from 0, and of a second text for pairs of texts."""
    separator: Literal["tab", "space"] = "tab"
    """The separator of columns; with space, a line has two columns, separated by its first space."""
    label_end: str = ""
    """A delimiter that ends the label, such as ":" in "LOC:city"; empty if the label is the whole column."""
    classes: str = ""
    """The comma-separated names of the classes; by default, the labels of the training file."""
    tokenizer: Literal["characters", "unigram", "bpe", "pretrained"] = "unigram"
    """The kind of tokens: single characters, or subwords by sentencepiece. With init_from, the other run's, which is
    "pretrained" if that run was made from a pretrained model."""
    vocab_size: int = 8000
    """The number of subwords in the vocabulary; with characters, the texts determine it."""
    max_length: int = 128
    """The maximum number of tokens of a text, class token and end token included; longer texts are truncated."""
    tokens_per_batch: int = 2048
    """The number of tokens per batch, padding included."""
    num_shapes: int = 4
    """The number of different batch lengths (buckets); one program is compiled for each."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        check_classes(self.classes)
        at_least(0, self, "max_examples")
        at_least(1, self, "tokens_per_batch", "num_shapes")
        at_least(MIN_SUBWORDS if self.tokenizer in ("unigram", "bpe") else 1, self, "vocab_size")
        at_least(3, self, "max_length")
        check_held_out(self.held_out)
        if min(self.columns, default=-1) < 0 or len(set(self.columns)) != len(self.columns):
            raise ConfigError(f"columns must be different numbers from 0, got {self.columns}")
        self.check_columns()

    def check_columns(self) -> None:
        """Checks the number of columns."""
        if len(self.columns) not in (2, 3):
            raise ConfigError(f"columns must be two numbers, or three for pairs of texts, got {self.columns}")
        if self.separator == "space" and set(self.columns) != {0, 1}:
            raise ConfigError(f"with separator space there are columns 0 and 1, got {self.columns}")

    @property
    def has_pairs(self) -> bool:
        """True if each example is a pair of texts."""
        return len(self.columns) == 3

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names in `classes`."""
        return split_classes(self.classes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelingConfig(TaskConfig):
    """The settings of a task with labeled texts, whose encoder may be that of a masked language model."""

    model: ClassifierConfig | TokenClassifierConfig = ClassifierConfig()
    """The encoder; a vocabulary size of 0 is replaced by the tokenizer's."""
    data: DataConfig = DataConfig()
    """Texts and labels."""

    __repr__ = brief

    def check(self) -> None:
        check_length("data.max_length", self.data.max_length, self.model.length_limit)

    def check_init(self, source: TaskConfig) -> None:
        if not _has_encoder(source):
            raise ConfigError(
                f"init_from {self.init_from} is a run of {source.task}; {self.task} starts from one of "
                "masked_language_model, classification or tagging"
            )
        fixed = [f"model.{name}" for name in SHAPE if name != "max_positions"]  # see init_positions
        fixed.append("data.tokenizer")
        if source.data.tokenizer != "characters":
            fixed.append("data.vocab_size")
        there, here = (dict(zip(fixed, operator.attrgetter(*fixed)(each), strict=True)) for each in (source, self))
        check_equal(self.init_from, "encoder or vocabulary", there, here)

    def with_settings_of(self, source: TaskConfig) -> Self:
        if not _has_encoder(source):  # it is refused later
            return self
        tokens = {name: getattr(source.data, name) for name in ("tokenizer", "vocab_size")}
        if source.model.length_limit is not None:
            tokens["max_length"] = min(self.data.max_length, source.model.length_limit)
        shape = {name: getattr(source.model, name) for name in SHAPE}
        return dataclasses.replace(
            self, model=dataclasses.replace(self.model, **shape), data=dataclasses.replace(self.data, **tokens)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationConfig(LabelingConfig):
    """A complete text classification experiment."""

    task: ClassVar[str] = "classification"

    name: str = "classification"
    """The run's name in logs and plots."""
    model: ClassifierConfig = ClassifierConfig()
    """The encoder and its pooling; a vocabulary size of 0 is replaced by the tokenizer's."""
    data: DataConfig = DataConfig()
    """Texts and labels."""

    __repr__ = brief


def _has_encoder(source: TaskConfig) -> TypeGuard[LabelingConfig | encoders.MaskedLanguageModelingConfig]:
    """Returns True for a run with an encoder of texts and a tokenizer."""
    return isinstance(source, LabelingConfig | encoders.MaskedLanguageModelingConfig)


SMALL, TINY = ClassifierConfig(**vars(encoders.SMALL)), ClassifierConfig(**vars(encoders.TINY))


def classification() -> ClassificationConfig:
    """Classification of your own texts, from the encoder of `masked_language_model`: give --data.train, --init-from."""
    return ClassificationConfig(
        model=SMALL,
        optimizer=AdamConfig(
            learning_rate=1e-3, schedule=LinearDecay(), warmup_steps=30, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0
        ),
        train=TrainConfig(steps=400, validate_every=100, checkpoint_every=100, keep_last=1, metric="accuracy"),
    )


def tiny() -> ClassificationConfig:
    """Classification from the encoder of `masked_language_model:tiny` (2 layers, D = 128)."""
    return dataclasses.replace(classification(), name="classification-tiny", model=TINY, data=DataConfig(num_shapes=3))


def average() -> ClassificationConfig:
    """The baseline without attention: the average of token vectors, trained from scratch, with a linear layer."""
    config = classification()
    return dataclasses.replace(
        config,
        name="classification-average",
        model=dataclasses.replace(SMALL, num_layers=0, positions=None, final_norm=False, pooling="mean"),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=2e-3),
    )
