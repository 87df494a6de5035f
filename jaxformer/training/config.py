"""The settings of a training that every task has. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from jaxformer.config import PLACE, at_least
from jaxformer.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The length of a training, its validations and its checkpoints.

    A run with checkpoints also writes one at the last step, at a best validation, and when it is asked to stop.
    """

    steps: int = 100_000
    """Parameter updates."""
    accumulate: int = 1
    """Microbatches an update: a batch is split into this many parts, which run one after another."""
    ema_decay: float = 0.0
    """Decay of an exponential moving average of the parameters; 0 keeps none."""
    validate_every: int = 1000
    """Steps between validations; 0 never validates."""
    metric: str = "loss"
    """The validation figure by which checkpoints are better or worse."""
    patience: int = 0
    """Validations without a better one before training stops; 0 never stops early."""
    minutes: float = dataclasses.field(default=0.0, metadata=PLACE)
    """Wall-clock time after which to save and stop; the same command resumes the run, and may allow another time. 0 for
    no limit."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; 0 for none at fixed steps."""
    checkpoint_minutes: float = 0.0
    """Wall-clock time between checkpoints, besides those of checkpoint_every; 0 for none."""
    keep_last: int = 5
    """Checkpoints kept besides the best one."""
    log_every: int = 10
    """Steps between lines of the progress bar and TensorBoard; the JSON log holds every step. 0 for the last one."""
    nonfinite: Literal["abort", "skip", "rollback"] = "abort"
    """Reaction to a loss or gradient that is not finite: end; leave the update out; go back to the last checkpoint and
    leave the batch out, at most three times in a row."""
    stall_minutes: float = dataclasses.field(default=0.0, metadata=PLACE)
    """Time without progress after which a process says where it is stuck, with all stacks, and ends; 0 for no limit.
    It must be longer than the first step, with its compilation, and than a whole validation."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    log_to: Literal["", "wandb", "mlflow"] = dataclasses.field(default="", metadata=PLACE)
    """A tracker of experiments that receives the figures too: Weights & Biases or MLflow, as their own environment
    variables set them up, such as WANDB_PROJECT, WANDB_MODE and MLFLOW_TRACKING_URI."""

    def __post_init__(self) -> None:
        at_least(1, self, "steps", "accumulate", "keep_last")
        at_least(0, self, "ema_decay", "validate_every", "patience", "minutes", "checkpoint_every")
        at_least(0, self, "checkpoint_minutes", "log_every", "stall_minutes")
        if self.steps >= 2**31:  # the counter of the training state has 32 bits
            raise ConfigError(f"steps must be less than 2**31, got {self.steps}")
        if self.ema_decay >= 1:
            raise ConfigError(f"ema_decay must be less than 1, got {self.ema_decay}")

    @property
    def rollbacks(self) -> int:
        """The most times in a row that training goes back to a checkpoint."""
        return 3 if self.nonfinite == "rollback" else 0


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam as Vaswani et al. 2017 (section 5.3) set it, and its schedule."""

    learning_rate: float = 7e-4
    """Highest learning rate; the paper's is `schedules.noam_peak(d_model, warmup_steps)`."""
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """Shape of the learning rate after warm-up."""
    warmup_steps: int = 4000
    """Steps of linear warm-up."""
    decay_steps: int = 0
    """Steps after which a cosine or linear schedule has reached 0; 0 means the length of the training."""
    cooldown: float = 0.0
    """Last fraction of the training, in [0, 1], over which the rate of any schedule falls to 0 in a straight line."""
    b1: float = 0.9
    """Decay of the gradient's average."""
    b2: float = 0.98
    """Decay of the squared gradient's average."""
    epsilon: float = 1e-9
    """Added to the root of the squared average."""
    weight_decay: float = 0.0
    """Decoupled weight decay (Loshchilov and Hutter 2019), on matrices only."""
    clip_norm: float = 0.0
    """Largest global norm of the gradient; 0 does not clip."""

    def __post_init__(self) -> None:
        at_least(0, self, "learning_rate", "warmup_steps", "decay_steps", "cooldown", "b1", "b2", "epsilon")
        at_least(0, self, "weight_decay", "clip_norm")
        for name in ("learning_rate", "epsilon", "weight_decay", "clip_norm"):
            if getattr(self, name) == math.inf:
                raise ConfigError(f"{name} must be finite, got inf")
        for name in ("b1", "b2"):
            if getattr(self, name) >= 1:
                raise ConfigError(f"{name} must be less than 1, got {getattr(self, name)}")
