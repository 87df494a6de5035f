"""Learning rate schedules as functions of the step.

Those of optax round otherwise, and a resumed run must repeat the learning rates of its completed steps to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxformer.errors import ConfigError

Schedule = Callable[[ArrayLike], jax.Array]
"""A function from a step, 0 for the first update, to its learning rate."""


def inverse_sqrt(peak: float, warmup_steps: int) -> Schedule:
    r"""Returns linear warm-up to `peak`, then decay with the square root of the step (Vaswani et al. 2017, eq. 3).

    .. math:: lr(t) = peak \cdot \min(t / w, \sqrt{w / t}), \quad t = step + 1

    Raises:
      ConfigError: `warmup_steps` is less than 1.

    >>> [round(float(inverse_sqrt(1.0, 4)(step)), 3) for step in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    """
    if warmup_steps < 1:
        raise ConfigError(f"warmup_steps of inverse_sqrt must be at least 1, got {warmup_steps}")

    def rate(step: ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32) + 1
        return peak * jnp.minimum(t / warmup_steps, jnp.sqrt(warmup_steps / t))

    return rate


def noam_peak(d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Returns the peak of Vaswani et al. 2017, ``factor * (d_model * warmup_steps) ** -0.5``: 7e-4 for 512, 4000."""
    return factor * (d_model * warmup_steps) ** -0.5


def cosine(peak: float, warmup_steps: int, steps: int, *, end: float = 0.0) -> Schedule:
    """Returns linear warm-up to `peak`, then half a cosine down to `end` at `steps` (Loshchilov and Hutter 2017).

    Raises:
      ConfigError: `steps` is not more than `warmup_steps`.
    """
    decayed = lambda progress: end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return _decaying("cosine", peak, warmup_steps, steps, decayed)


def linear(peak: float, warmup_steps: int, steps: int, *, end: float = 0.0) -> Schedule:
    """Returns linear warm-up to `peak`, then linear decay to `end` at `steps` (Devlin et al. 2019, appendix A.2).

    Raises:
      ConfigError: `steps` is not more than `warmup_steps`.

    >>> [round(float(linear(1.0, 2, 6)(step)), 3) for step in (0, 1, 3, 5, 9)]
    [0.5, 1.0, 0.5, 0.0, 0.0]
    """
    return _decaying("linear", peak, warmup_steps, steps, lambda progress: peak + (end - peak) * progress)


def constant(peak: float, warmup_steps: int = 0) -> Schedule:
    """Returns linear warm-up to `peak`, then a constant rate."""

    def rate(step: ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32) + 1
        return peak * jnp.minimum(1.0, t / max(warmup_steps, 1))

    return rate


def cooldown(schedule: Schedule, steps: int, last: int) -> Schedule:
    """Returns `schedule` with its last `last` of `steps` steps scaled linearly to 0 (Hägele et al. 2024).

    Earlier steps follow `schedule`, so a run can be cooled down from any of its checkpoints.

    Raises:
      ConfigError: `last` is not in [1, `steps`].

    >>> [round(float(cooldown(constant(1.0), 8, 4)(step)), 3) for step in (0, 4, 5, 7, 9)]
    [1.0, 1.0, 0.75, 0.25, 0.0]
    """
    if not 0 < last <= steps:
        raise ConfigError(f"cooldown must last between 1 and all {steps} steps of the training, got {last}")

    def rate(step: ArrayLike) -> jax.Array:
        left = steps - jnp.asarray(step, jnp.float32)
        return schedule(step) * jnp.clip(left / last, 0, 1)

    return rate


def _decaying(
    name: str, peak: float, warmup_steps: int, steps: int, decayed: Callable[[jax.Array], jax.Array]
) -> Schedule:
    """Returns linear warm-up to `peak`, then `decayed` of the progress from there to `steps`, from 0 to 1."""
    if steps <= warmup_steps:
        raise ConfigError(
            f"{name}: steps (train.steps, or optimizer.decay_steps) must be more than optimizer.warmup_steps, got "
            f"steps={steps}, warmup_steps={warmup_steps}"
        )

    def rate(step: ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32) + 1
        progress = jnp.clip((t - warmup_steps) / (steps - warmup_steps), 0, 1)
        return jnp.where(t < warmup_steps, peak * t / max(warmup_steps, 1), decayed(progress))

    return rate
