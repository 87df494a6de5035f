"""Optimizers from configuration, as optax gradient transformations."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import jax
import optax

from jaxformer.config import at_least
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.training import schedules

SCHEDULES = "inverse_sqrt", "cosine", "linear", "constant"


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


def make_schedule(config: OptimizerConfig, *, steps: int) -> schedules.Schedule:
    """Returns the learning rate of a training of `steps` updates.

    Raises:
      ConfigError: the schedule is unknown, or its warm-up is not shorter than its decay.
    """
    rate = _schedule(config, steps)
    if not config.cooldown:
        return rate
    last = round(steps * config.cooldown)
    return schedules.cooldown(rate, steps, max(1, last) if config.cooldown > 0 else last)


def _schedule(config: OptimizerConfig, steps: int) -> schedules.Schedule:
    match config.schedule:
        case "inverse_sqrt":
            return schedules.inverse_sqrt(config.learning_rate, max(config.warmup_steps, 1))
        case "cosine":
            return schedules.cosine(config.learning_rate, config.warmup_steps, config.decay_steps or steps)
        case "linear":
            return schedules.linear(config.learning_rate, config.warmup_steps, config.decay_steps or steps)
        case "constant":
            return schedules.constant(config.learning_rate, config.warmup_steps)
    raise ConfigError(f"no schedule {config.schedule!r}{did_you_mean(config.schedule, SCHEDULES)}")


def make_optimizer(config: OptimizerConfig, *, steps: int) -> optax.GradientTransformation:
    """Returns clipping, Adam, weight decay and schedule in one chain."""
    parts = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    parts.append(optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.epsilon))
    if config.weight_decay:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=_matrices))
    parts.append(optax.scale_by_learning_rate(make_schedule(config, steps=steps)))
    return optax.chain(*parts)


def _matrices(params: optax.Params) -> optax.Params:
    """Returns True for kernels and tables, False for biases and norms, stacked or not."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not any(str(getattr(k, "key", "")).endswith(("bias", "scale")) for k in path), params
    )
