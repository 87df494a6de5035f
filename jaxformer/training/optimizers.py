"""Optimizers from configuration, as optax gradient transformations."""

from __future__ import annotations

import jax
import optax

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.training import schedules
from jaxformer.training.config import OptimizerConfig as OptimizerConfig

SCHEDULES = "inverse_sqrt", "cosine", "linear", "constant"


def make_schedule(config: OptimizerConfig, *, steps: int) -> schedules.Schedule:
    """Returns the learning rate schedule for `steps` updates.

    Raises:
      ConfigError: the schedule is unknown, its warm-up is not shorter than its decay, or `cooldown` is not in [0, 1].
    """
    rate = _schedule(config, steps)
    if not config.cooldown:
        return rate
    return schedules.cooldown(rate, steps, max(1, round(steps * config.cooldown)))


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


def freeze(optimizer: optax.GradientTransformation, frozen: optax.Params) -> optax.GradientTransformation:
    """Returns an optimizer that leaves the parameters where `frozen` is True alone; it keeps no moments for them."""
    trained = jax.tree.map(lambda x: not x, frozen)
    return optax.chain(optax.masked(optimizer, trained), optax.masked(optax.set_to_zero(), frozen))


def averaging(
    optimizer: optax.GradientTransformation, averages: optax.Params, *, decay: float
) -> optax.GradientTransformation:
    """Returns an optimizer that moves the parameters where `averages` is True by ``decay - 1`` times their gradient.

    If their gradient is that of ``(parameter - x) ** 2 / 2``, they are moving averages of x.
    """
    others = jax.tree.map(lambda x: not x, averages)
    return optax.chain(optax.masked(optimizer, others), optax.masked(optax.sgd(1 - decay), averages))


def _matrices(params: optax.Params) -> optax.Params:
    """Returns True for kernels and embedding tables, False for biases and norm scales, stacked or not."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not any(str(getattr(k, "key", "")).endswith(("bias", "scale")) for k in path), params
    )
