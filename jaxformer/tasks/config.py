"""The settings that every task has. Importing them needs none of a task's libraries."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxformer.config import PLACE, at_least, check_numbers
from jaxformer.training.config import OptimizerConfig, TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The settings that every task has; a task adds `model`, `data` and, if its predictor searches, `decode`."""

    task: ClassVar[str] = ""
    """The name of the task, as in `registry.TASKS`."""

    name: str = "run"
    """The run's name in logs and pictures."""
    seed: int = 0
    """The seed of parameters, dropout and the order of the data."""
    init_from: str = ""
    """Start from the parameters of another run: RUN or RUN:CHECKPOINT. The run also takes its tokenizer."""
    mesh: str = dataclasses.field(default="", metadata=PLACE)
    """Axes of the device mesh, such as "data=8,tensor=4"; by default all devices are `data`."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Adam and its schedule."""
    train: TrainConfig = TrainConfig()
    """Steps, validation, checkpoints."""

    def __post_init__(self) -> None:
        check_numbers(self)
        at_least(0, self, "seed")
        if self.seed >= 2**32:  # JAX's keys would be those of a smaller seed
            raise ValueError(f"seed must be less than 2**32, got {self.seed}")
