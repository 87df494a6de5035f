"""The training settings that every task has. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

from jaxformer.config import LATER, PLACE, at_least, below, check_choices
from jaxformer.errors import ConfigError
from jaxformer.reprs import as_html, brief


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The length of training, its validations and its checkpoints.

    Besides the checkpoints at fixed steps or times, one is written at each best validation and when training stops. A
    run may be resumed with other values, except for num_microbatches, ema_decay and metric.
    """

    steps: int = dataclasses.field(default=100_000, metadata=LATER)
    """Parameter updates."""
    num_microbatches: int = 1
    """The number of parts into which each batch is split for gradient accumulation; the batch size stays the same."""
    ema_decay: float = 0.0
    """Decay of an exponential moving average of the parameters, which validations and predictions use; 0 keeps none."""
    validate_every: int = dataclasses.field(default=1000, metadata=LATER)
    """Steps between validations; the last step is always validated. 0 never validates."""
    metric: str = "loss"
    """The validation metric that ranks checkpoints."""
    patience: int = dataclasses.field(default=0, metadata=LATER)
    """Validations without improvement after which training stops; 0 never stops early."""
    minutes: float = dataclasses.field(default=0.0, metadata=PLACE)
    """Wall-clock time of this start, preparation included, after which to save and stop; the same command, perhaps with
    another limit, resumes the run. 0 for no limit."""
    checkpoint_every: int = dataclasses.field(default=1000, metadata=LATER)
    """Steps between checkpoints; 0 for no fixed interval."""
    checkpoint_minutes: float = dataclasses.field(default=0.0, metadata=LATER)
    """Wall-clock time between checkpoints, in addition to checkpoint_every; 0 for none."""
    keep_last: int = dataclasses.field(default=5, metadata=LATER)
    """The number of most recent checkpoints to keep, besides the best one."""
    log_every: int = dataclasses.field(default=10, metadata=LATER)
    """Steps between reports on the screen and to TensorBoard; the JSON log has every step. 0 for the last step only."""
    nonfinite: Literal["abort", "skip", "rollback"] = dataclasses.field(default="abort", metadata=LATER)
    """Reaction to a loss or gradient that is not finite: end training; skip the update; or go back to the last
    checkpoint and skip the batch, at most three times in a row. Before the first checkpoint, training ends."""
    stall_minutes: float = dataclasses.field(default=0.0, metadata=PLACE)
    """Time without progress after which a process reports where it is stuck, with the stacks of all threads, and exits;
    0 for no limit. It must be longer than the first step, including compilation, and than a whole validation."""
    tensorboard: bool = dataclasses.field(default=True, metadata=LATER)
    """Write TensorBoard events."""
    log_to: Literal["", "wandb", "mlflow"] = dataclasses.field(default="", metadata=PLACE)
    """An experiment tracker that also receives the metrics: Weights & Biases or MLflow, configured by their own
    environment variables, such as WANDB_PROJECT, WANDB_MODE and MLFLOW_TRACKING_URI."""

    __repr__ = brief
    _repr_html_ = as_html

    def __post_init__(self) -> None:
        at_least(1, self, "steps", "num_microbatches", "keep_last")
        at_least(0, self, "ema_decay", "validate_every", "patience", "minutes", "checkpoint_every")
        at_least(0, self, "checkpoint_minutes", "log_every", "stall_minutes")
        below(2**31, self, "steps")  # the counter of the training state has 32 bits
        below(1, self, "ema_decay")
        if self.patience and not self.validate_every:
            raise ConfigError(f"patience {self.patience} has no effect, because validate_every is 0; take patience 0")

    @property
    def rollbacks(self) -> int:
        """The maximum number of times in a row that training goes back to a checkpoint."""
        return 3 * (self.nonfinite == "rollback")


@dataclasses.dataclass(frozen=True)
class InverseSqrtDecay:
    """The rate falls with the square root of the step (Vaswani et al. 2017)."""

    kind: ClassVar[str] = "inverse_sqrt"


@dataclasses.dataclass(frozen=True)
class CosineDecay:
    """The rate falls to 0 by half a cosine (Loshchilov and Hutter 2017)."""

    kind: ClassVar[str] = "cosine"

    decay_steps: int = 0
    """Steps after which the rate has reached 0; 0 means the length of the training."""

    def __post_init__(self) -> None:
        at_least(0, self, "decay_steps")


@dataclasses.dataclass(frozen=True)
class LinearDecay(CosineDecay):
    """The rate falls to 0 linearly (Devlin et al. 2019)."""

    kind: ClassVar[str] = "linear"


@dataclasses.dataclass(frozen=True)
class ConstantRate:
    """The rate stays at its peak."""

    kind: ClassVar[str] = "constant"


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The settings of every optimizer, and the learning rate's schedule; by default as in Vaswani et al. 2017.

    A run may be resumed with another schedule if the learning rates of the completed steps are the same.
    """

    learning_rate: float = dataclasses.field(default=7e-4, metadata=LATER)
    """Peak learning rate; in the paper it is `schedules.noam_peak(d_model, warmup_steps)`."""
    schedule: InverseSqrtDecay | CosineDecay | LinearDecay | ConstantRate = dataclasses.field(
        default=InverseSqrtDecay(), metadata=LATER
    )
    """Shape of the learning rate after warm-up."""
    warmup_steps: int = dataclasses.field(default=4000, metadata=LATER)
    """Steps of linear warm-up."""
    cooldown: float = dataclasses.field(default=0.0, metadata=LATER)
    """Last fraction of training, in [0, 1], over which the rate of any schedule falls linearly to 0."""
    b1: float = 0.9
    """Decay of the gradient's moving average."""
    b2: float = 0.98
    """Decay of the squared gradient's moving average."""
    epsilon: float = 1e-9
    """Added to the square root of the squared gradient's average."""
    weight_decay: float = 0.0
    """Decoupled weight decay (Loshchilov and Hutter 2019) of all parameters except biases and scales: parameters with a
    name in their path that ends in "bias" or "scale", attention sinks, the two biases of Transformer-XL, the gain of
    attention in a residual network, and the baseline of a captioner."""
    clip_norm: float = 0.0
    """Global norm to which the gradient is clipped; 0 for no clipping."""

    __repr__ = brief
    _repr_html_ = as_html

    def __post_init__(self) -> None:
        check_choices(self)
        at_least(0, self, "learning_rate", "warmup_steps", "cooldown", "b1", "b2", "epsilon")
        at_least(0, self, "weight_decay", "clip_norm")
        below(math.inf, self, "learning_rate", "epsilon", "weight_decay", "clip_norm")
        below(1, self, "b1", "b2")
        if self.cooldown > 1:
            raise ConfigError(f"cooldown is a fraction of training, at most 1, got {self.cooldown}")


@dataclasses.dataclass(frozen=True, repr=False)
class AdamConfig(OptimizerConfig):
    """Adam (Kingma and Ba 2015), with decoupled weight decay."""

    kind: ClassVar[str] = "adam"


@dataclasses.dataclass(frozen=True, repr=False)
class MuonConfig(OptimizerConfig):
    """Muon (Jordan et al. 2024) for the kernels of attention and feed-forward layers, and Adam for other parameters.

    Muon updates a kernel by the orthogonal matrix nearest to its momentum. Adam updates the other parameters, such as
    embeddings, norms and recurrent kernels. Muon's updates have the size of Adam's (Liu et al. 2025), so learning rates
    carry over. The projections of queries, keys and values are separate matrices, and so is each offset of a
    convolution except the first convolution, which Adam updates. With fewer key heads than query heads, the queries'
    projection is several matrices: one for the first query head of every key head, one for the second, and so on.
    """

    kind: ClassVar[str] = "muon"

    momentum: float = 0.95
    """Decay of the gradient's moving average in Muon; `b1` is Adam's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "momentum")
        below(1, self, "momentum")
