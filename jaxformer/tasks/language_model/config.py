"""The settings of a language model, and its built-in configurations. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from jaxformer.config import at_least, check_held_out
from jaxformer.data.weights import WeightConfig, check_used, check_weights, make_phases
from jaxformer.models.config import LanguageModelConfig
from jaxformer.reprs import brief
from jaxformer.tasks.config import (
    Beam,
    DataFolders,
    GenerationConfig,
    Greedy,
    MinimumRisk,
    Sample,
    SearchConfig,
    TaskConfig,
    check_length,
    words,
)
from jaxformer.tokenizers.special_tokens import MIN_SUBWORDS
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig(WeightConfig):
    """One of several texts, with its weight and steps."""

    text: str = ""
    """The training text; several files are separated by commas and read as one text."""
    validation: str = ""
    """A text to validate on; by default, data.held_out of the training text is held out."""

    __repr__ = brief


@dataclasses.dataclass(frozen=True)
class DataConfig(DataFolders):
    """The text, its tokens, and the training windows."""

    corpora: Mapping[str, TextConfig] = dataclasses.field(default_factory=dict)
    """Several texts by name, in place of `text`; no window spans two of them, and scores are by text."""
    temperature: float = 1.0
    """The weight of a text of n tokens is n ** (1 / temperature), if texts have no weights: 1 for all tokens alike,
    more for more equal shares."""
    text: str = ""
    """The training text, UTF-8; several files are separated by commas and read as one text."""
    validation: str = ""
    """A text to validate on; by default, `held_out` of the training text is held out."""
    held_out: int | float = 0.1
    """The fraction of the text, at its end, held out for validation if no file is named, or its number of characters,
    an integer from 1."""
    tokenizer: Literal["characters", "unigram", "bpe", "pretrained"] = "characters"
    """The kind of tokens: single characters, subwords by sentencepiece, or the tokens of `init_from`'s pretrained
    model."""
    vocab_size: int = 1000
    """The number of subwords in the vocabulary; with characters, the text determines it."""
    length: int = 256
    """The number of tokens per window: the context length in training."""
    batch_size: int = 32
    """The number of windows per batch."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        check_held_out(self.held_out)
        at_least(1, self, "length", "batch_size")
        at_least(MIN_SUBWORDS if self.tokenizer in ("unigram", "bpe") else 1, self, "vocab_size")
        if self.temperature != 1 and not self.corpora:
            raise ValueError(f"temperature {self.temperature} has no effect: corpora names none")
        if not self.corpora:
            return
        for name in ("text", "validation"):
            if file := getattr(self, name):
                raise ValueError(f"{name} {file!r} has no effect with corpora: set that of each one")
        make_phases(self.corpora, temperature=self.temperature)
        for name, corpus in self.corpora.items():
            if not corpus.text:
                raise ValueError(f"corpora.{name} names no file: set corpora.{name}.text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig(GenerationConfig):
    """The settings of text continuation."""

    without_search: ClassVar[Mapping[str, tuple[str, ...]]] = {"score": ("average",), "evaluate": ()}

    search: Beam | Greedy | Sample | MinimumRisk = Sample(temperature=0.8)
    """The rule by which text is chosen: sample, greedy, a beam, or minimum_risk."""
    max_tokens: int = 200
    """The maximum number of tokens to add to a prompt."""
    stop_at_end: bool = False
    """Ends a continuation when the model predicts the end token, as with pretrained models. A model trained on running
    text has never seen one. Without it, all texts of a beam have one length, which is not penalized."""
    eos_token_ids: str = ""
    """The comma-separated ids of the tokens that end a continuation, with stop_at_end; by default, the vocabulary's end
    token."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "max_tokens")
        ids = words(self.eos_token_ids)
        if self.eos_token_ids and not (ids and all(word.isdecimal() for word in ids)):
            raise ValueError(f"eos_token_ids must be ids of tokens, separated by commas, got {self.eos_token_ids!r}")
        if self.eos_token_ids and not self.stop_at_end:
            raise ValueError(f"eos_token_ids {self.eos_token_ids} has no effect: stop_at_end is False")
        if self.coverage_penalty:
            raise ValueError("coverage_penalty has no effect: a language model has no input to cover")

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The ids of `eos_token_ids`."""
        return tuple(map(int, words(self.eos_token_ids)))

    @property
    def finder(self) -> Beam | Sample:
        """See `GenerationConfig`; without `stop_at_end`, a beam has no length penalty."""
        finder = super().finder
        if isinstance(finder, Beam) and not self.stop_at_end:
            finder = dataclasses.replace(finder, length_penalty=0.0, normalization="tokens")
        return finder

    @property
    def rules(self) -> SearchConfig:
        """The settings that a search reads, as in other tasks."""
        return SearchConfig(
            search=self.finder,
            forced_end="never",
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            average=self.average,
            cache_dtype=self.cache_dtype,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelingConfig(TaskConfig):
    """A complete language modeling experiment."""

    task: ClassVar[str] = "language_model"

    name: str = "language model"
    """The run's name in logs and plots."""
    model: LanguageModelConfig = LanguageModelConfig()
    """The network; a vocabulary size of 0 is replaced by the tokenizer's."""
    data: DataConfig = DataConfig()
    """Text and windows."""
    decode: DecodeConfig = DecodeConfig()
    """Text generation."""

    __repr__ = brief

    def check_resumed(self, saved: Self, done: int) -> None:
        check_weights(saved.data.corpora, self.data.corpora, done, self.data.temperature)

    def check(self) -> None:
        check_used(self.data.corpora, self.train.steps)
        check_length("data.length", self.data.length, self.model.length_limit)


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
