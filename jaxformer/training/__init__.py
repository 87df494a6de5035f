"""Training: state, step, loop, checkpoints and logs; independent of any task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.training.config import OptimizerConfig as OptimizerConfig
from jaxformer.training.config import TrainConfig as TrainConfig

if TYPE_CHECKING:
    from jaxformer.training.checkpoint import CheckpointError as CheckpointError
    from jaxformer.training.checkpoint import Checkpoints as Checkpoints
    from jaxformer.training.checkpoint import save_seconds as save_seconds
    from jaxformer.training.loop import Progress as Progress
    from jaxformer.training.loop import Result as Result
    from jaxformer.training.loop import fit as fit
    from jaxformer.training.optimizers import make_optimizer as make_optimizer
    from jaxformer.training.optimizers import make_schedule as make_schedule
    from jaxformer.training.recorder import NonFiniteError as NonFiniteError
    from jaxformer.training.recorder import Outputs as Outputs
    from jaxformer.training.replicated import make_replicated_step as make_replicated_step
    from jaxformer.training.state import TrainState as TrainState
    from jaxformer.training.state import best_params as best_params
    from jaxformer.training.state import create as create
    from jaxformer.training.step import make_step as make_step

__getattr__ = lazy.members(
    __name__,
    {
        "checkpoint": "CheckpointError Checkpoints save_seconds",
        "loop": "Progress Result fit",
        "optimizers": "make_optimizer make_schedule",
        "recorder": "NonFiniteError Outputs",
        "replicated": "make_replicated_step",
        "state": "TrainState best_params create",
        "step": "make_step",
        "schedules": "",
        "logging": "",
        "progress": "",
        "signals": "",
        "watchdog": "",
        "checksums": "",
    },
)
