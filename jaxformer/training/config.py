"""The settings of a training that every task has."""

from __future__ import annotations

import dataclasses
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
