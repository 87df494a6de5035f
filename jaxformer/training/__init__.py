"""Training: state, step, loop, checkpoints and logs; independent of any task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.training.config import AdamConfig as AdamConfig
from jaxformer.training.config import ConstantRate as ConstantRate
from jaxformer.training.config import CosineDecay as CosineDecay
from jaxformer.training.config import InverseSqrtDecay as InverseSqrtDecay
from jaxformer.training.config import LinearDecay as LinearDecay
from jaxformer.training.config import MuonConfig as MuonConfig
from jaxformer.training.config import OptimizerConfig as OptimizerConfig
from jaxformer.training.config import TrainConfig as TrainConfig

if TYPE_CHECKING:
    from jaxformer.training.checkpoint import Checkpoints as Checkpoints
    from jaxformer.training.checkpoint import save_timeout as save_timeout
    from jaxformer.training.hooks import Hook as Hook
    from jaxformer.training.hooks import Means as Means
    from jaxformer.training.hooks import Start as Start
    from jaxformer.training.integrity import CheckpointError as CheckpointError
    from jaxformer.training.integrity import OtherModelError as OtherModelError
    from jaxformer.training.loop import Progress as Progress
    from jaxformer.training.loop import Result as Result
    from jaxformer.training.loop import fit as fit
    from jaxformer.training.optimizers import averaging as averaging
    from jaxformer.training.optimizers import freeze as freeze
    from jaxformer.training.optimizers import make_optimizer as make_optimizer
    from jaxformer.training.optimizers import make_schedule as make_schedule
    from jaxformer.training.phase_timer import PhaseTimer as PhaseTimer
    from jaxformer.training.profile import Profile as Profile
    from jaxformer.training.recorder import NonFiniteError as NonFiniteError
    from jaxformer.training.state import TrainState as TrainState
    from jaxformer.training.state import best_params as best_params
    from jaxformer.training.state import create as create
    from jaxformer.training.state import create_sharded as create_sharded
    from jaxformer.training.step import Loss as Loss
    from jaxformer.training.step import OutOfMemoryError as OutOfMemoryError
    from jaxformer.training.step import make_replicated_step as make_replicated_step
    from jaxformer.training.step import make_step as make_step
    from jaxformer.training.tracking import MlflowHook as MlflowHook
    from jaxformer.training.tracking import WandbHook as WandbHook

__getattr__ = lazy.members(
    __name__,
    {
        "phase_timer": "PhaseTimer",
        "checkpoint": "Checkpoints save_timeout",
        "hooks": "Hook Means Start",
        "integrity": "CheckpointError OtherModelError",
        "loop": "Progress Result fit",
        "optimizers": "averaging freeze make_optimizer make_schedule",
        "profile": "Profile",
        "recorder": "NonFiniteError",
        "state": "TrainState best_params create create_sharded",
        "step": "Loss OutOfMemoryError make_replicated_step make_step",
        "schedules": "",
        "tracking": "MlflowHook WandbHook",
        "logging": "",
        "progress": "",
        "watchdog": "",
    },
)
