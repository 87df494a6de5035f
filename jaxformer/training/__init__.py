"""Training: state, step, loop, checkpoints and logs; independent of any task."""

from jaxformer.training.checkpoint import CheckpointError as CheckpointError
from jaxformer.training.checkpoint import Checkpoints as Checkpoints
from jaxformer.training.checkpoint import save_seconds as save_seconds
from jaxformer.training.config import TrainConfig as TrainConfig
from jaxformer.training.loop import Progress as Progress
from jaxformer.training.loop import Result as Result
from jaxformer.training.loop import fit as fit
from jaxformer.training.optimizers import OptimizerConfig as OptimizerConfig
from jaxformer.training.optimizers import make_optimizer as make_optimizer
from jaxformer.training.optimizers import make_schedule as make_schedule
from jaxformer.training.recorder import NonFiniteError as NonFiniteError
from jaxformer.training.recorder import Outputs as Outputs
from jaxformer.training.replicated import make_replicated_step as make_replicated_step
from jaxformer.training.state import TrainState as TrainState
from jaxformer.training.state import best_params as best_params
from jaxformer.training.state import create as create
from jaxformer.training.step import make_step as make_step
