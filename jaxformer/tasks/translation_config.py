"""What a translation experiment consists of: plain data, saved with every run."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxformer.config import PLACE
from jaxformer.models.encoder_decoder import EncoderDecoderConfig
from jaxformer.training import config as training
from jaxformer.training.optimizers import OptimizerConfig


def _at_least(least: int, config: object, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= least:  # nor NaN
            raise ValueError(f"{name} must be at least {least}, got {getattr(config, name)}")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where sentence pairs come from and how they become batches."""

    corpus: Literal["files", "grammar"] = "files"
    """Read files, or generate the built-in English-French corpus."""
    source: str = ""
    """Training sentences, one a line; or a table of tab-separated columns, when `target` is empty."""
    target: str = ""
    """Their translations, line by line."""
    columns: tuple[int, int] = (0, 1)
    """Source and target column of a table."""
    validation_source: str = ""
    """Validation sentences; without them, `held_out` training pairs are set aside."""
    validation_target: str = ""
    """Their translations."""
    test_source: str = ""
    """Test sentences; without them, `held_out` training pairs are set aside."""
    test_target: str = ""
    """Their translations."""
    held_out: int = 1000
    """Pairs set aside for validation, and as many for test, where no files are named; split by source sentence."""
    source_language: str = "en"
    """Two-letter code; chooses Moses' tokenizer rules in scoring."""
    target_language: str = "fr"
    """Two-letter code."""
    directory: str = dataclasses.field(default="", metadata=PLACE)
    """Relative paths start here; default: the working directory, and for files that are not in it the environment's
    JAXFORMER_DATA."""
    vocab_size: int = 8000
    """Subword pieces, joint over both languages."""
    tokenizer: Literal["unigram", "bpe"] = "unigram"
    """How sentencepiece cuts words."""
    num_segmentations: int = 1
    """Segmentations sampled for each training sentence (subword regularization, Kudo 2018); 1 is the best one only."""
    segmentation_alpha: float = 0.2
    """Smoothing of the sampling distribution: smaller is more diverse."""
    max_length: int = 256
    """Longer pairs, in tokens, are left out of training, counted and reported."""
    tokens_per_batch: int = 4096
    """Padded tokens a batch, the longer side counted."""
    num_shapes: int = 6
    """Batch shapes, hence compiled programs."""
    length_multiple: int = 1
    """Lengths of batches are a multiple of this; a mesh that cuts lengths (`context`) wants its own size here."""
    cache: str = dataclasses.field(default=".cache/jaxformer", metadata=PLACE)
    """Where tokenized corpora are kept, by hash."""

    def __post_init__(self) -> None:
        _at_least(
            1,
            self,
            "vocab_size",
            "num_segmentations",
            "max_length",
            "tokens_per_batch",
            "num_shapes",
            "length_multiple",
        )
        _at_least(0, self, "held_out")
        if min(self.columns) < 0:
            raise ValueError(f"columns must be at least 0, got {self.columns}")


@dataclasses.dataclass(frozen=True)
class TrainConfig(training.TrainConfig):
    """How long to train, and what to keep, with what translation adds."""

    metric: Literal["loss", "bleu"] = "loss"
    """The validation figure by which checkpoints are better or worse; "bleu" needs validation_bleu."""
    label_smoothing: float = 0.1
    """Weight of the uniform distribution in the training targets."""
    z_loss: float = 0.0
    """Weight of the squared log-partition function."""
    validation_bleu: int = 0
    """Validation sentences to translate greedily for BLEU at each validation; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(0, self, "label_smoothing", "z_loss", "validation_bleu")
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing must be less than 1, got {self.label_smoothing}")


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How translations are searched for."""

    beam_size: int = 4
    """Hypotheses kept for each sentence; 1 is greedy search."""
    length_penalty: float = 1.0
    """Scores are log-probabilities divided by length ** length_penalty."""
    batch_size: int = 64
    """Sentences searched together."""
    max_ratio: float = 2.0
    """A translation stops at max_ratio * source length + max_extra tokens."""
    max_extra: int = 10
    """See max_ratio."""

    def __post_init__(self) -> None:
        _at_least(1, self, "beam_size", "batch_size")
        _at_least(0, self, "length_penalty", "max_ratio", "max_extra")


@dataclasses.dataclass(frozen=True)
class TranslationConfig:
    """A whole translation experiment."""

    name: str = "translation"
    """Names the run in logs and pictures."""
    seed: int = 0
    """Parameters, dropout and data order follow from it."""
    mesh: str = dataclasses.field(default="", metadata=PLACE)
    """Axes of the device mesh, such as "data=8,tensor=4"; all devices are `data` when nothing is said."""
    model: EncoderDecoderConfig = EncoderDecoderConfig()
    """The network; vocabulary sizes of 0 are the tokenizer's."""
    data: DataConfig = DataConfig()
    """Corpora and batches."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Adam and its schedule."""
    train: TrainConfig = TrainConfig()
    """Steps, validation, checkpoints."""
    decode: DecodeConfig = DecodeConfig()
    """Search."""

    def __post_init__(self) -> None:
        _at_least(0, self, "seed")
        if self.seed >= 2**32:  # of which the keys of JAX would be those of a smaller one
            raise ValueError(f"seed must be less than 2**32, got {self.seed}")
