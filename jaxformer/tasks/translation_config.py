"""What a translation experiment consists of: plain data, saved with every run."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxformer.config import PLACE
from jaxformer.models.encoder_decoder import EncoderDecoderConfig
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
class TrainConfig:
    """How long to train, and what to keep."""

    steps: int = 100_000
    """Parameter updates."""
    label_smoothing: float = 0.1
    """Weight of the uniform distribution in the training targets."""
    z_loss: float = 0.0
    """Weight of the squared log-partition function."""
    accumulate: int = 1
    """Microbatches an update: a batch is cut in this many parts, one after another."""
    ema_decay: float = 0.0
    """Decay of an exponential moving average of the parameters; 0 keeps none."""
    validate_every: int = 1000
    """Steps between validations."""
    validation_bleu: int = 0
    """Validation sentences to translate greedily for BLEU at each validation; 0 for none."""
    metric: Literal["loss", "bleu"] = "loss"
    """The validation figure by which checkpoints are better or worse; "bleu" needs validation_bleu."""
    patience: int = 0
    """Validations without a better one before training stops; 0 never stops early."""
    minutes: float = 0.0
    """Wall-clock time after which to save and stop, to be gone on with by the same command; 0 for no limit."""
    checkpoint_every: int = 1000
    """Steps between checkpoints."""
    checkpoint_minutes: float = 0.0
    """Wall-clock time between checkpoints, besides those of checkpoint_every; 0 for none."""
    keep_last: int = 5
    """Checkpoints kept besides the best one."""
    log_every: int = 10
    """Steps between lines of the progress bar and TensorBoard; the JSON log holds every step."""
    nonfinite: Literal["abort", "skip", "rollback"] = "abort"
    """What to do when a loss or gradient is not finite: end; leave the update out; go back to the last checkpoint and
    leave the batch out, at most three times in a row."""
    stall_minutes: float = 0.0
    """Time without progress after which a process says where it is stuck, with all stacks, and ends; 0 for no limit.
    Longer than the first step, with its compilation, and than a whole validation."""
    tensorboard: bool = True
    """Write TensorBoard events."""

    def __post_init__(self) -> None:
        _at_least(1, self, "steps", "accumulate", "keep_last")
        _at_least(0, self, "label_smoothing", "z_loss", "ema_decay", "validate_every", "validation_bleu", "patience")
        _at_least(0, self, "minutes", "checkpoint_every", "checkpoint_minutes", "log_every", "stall_minutes")
        for name in ("label_smoothing", "ema_decay"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} must be less than 1, got {getattr(self, name)}")


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
