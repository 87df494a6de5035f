"""Learning rates as functions of the step."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array | int], jax.Array]
"""Step, counted from 0 for the first update, to learning rate."""


def inverse_sqrt(peak: float, warmup_steps: int) -> Schedule:
    r"""Linear warm-up to `peak`, then decay with the square root of the step (Vaswani et al. 2017, eq. 3).

    .. math:: lr(t) = peak \cdot \min(t / w, \sqrt{w / t}), \quad t = step + 1

    >>> [round(float(inverse_sqrt(1.0, 4)(step)), 3) for step in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    """
    if warmup_steps < 1:
        raise ValueError(f"inverse_sqrt needs a warm-up of at least one step, got {warmup_steps}")

    def rate(step):
        t = jnp.asarray(step, jnp.float32) + 1
        return peak * jnp.minimum(t / warmup_steps, jnp.sqrt(warmup_steps / t))

    return rate


def noam_peak(d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """The peak of the paper's schedule, ``factor * (d_model * warmup_steps) ** -0.5``: 7e-4 at D = 512, 4,000 steps."""
    return factor * (d_model * warmup_steps) ** -0.5


def cosine(peak: float, warmup_steps: int, steps: int, *, end: float = 0.0) -> Schedule:
    """Linear warm-up to `peak`, then half a cosine down to `end` at `steps` (Loshchilov and Hutter 2017)."""
    if steps <= warmup_steps:
        raise ValueError(
            f"cosine decays between warm-up and the last step, got warmup_steps={warmup_steps}, steps={steps}"
        )

    def rate(step):
        t = jnp.asarray(step, jnp.float32) + 1
        progress = jnp.clip((t - warmup_steps) / (steps - warmup_steps), 0, 1)
        decayed = end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return jnp.where(t < warmup_steps, peak * t / max(warmup_steps, 1), decayed)

    return rate


def linear(peak: float, warmup_steps: int, steps: int, *, end: float = 0.0) -> Schedule:
    """Linear warm-up to `peak`, then a straight line down to `end` at `steps` (Devlin et al. 2019, appendix A.2).

    >>> [round(float(linear(1.0, 2, 6)(step)), 3) for step in (0, 1, 3, 5, 9)]
    [0.5, 1.0, 0.5, 0.0, 0.0]
    """
    if steps <= warmup_steps:
        raise ValueError(
            f"linear decays between warm-up and the last step, got warmup_steps={warmup_steps}, steps={steps}"
        )

    def rate(step):
        t = jnp.asarray(step, jnp.float32) + 1
        progress = jnp.clip((t - warmup_steps) / (steps - warmup_steps), 0, 1)
        return jnp.where(t < warmup_steps, peak * t / max(warmup_steps, 1), peak + (end - peak) * progress)

    return rate


def constant(peak: float, warmup_steps: int = 0) -> Schedule:
    """Linear warm-up to `peak`, then `peak`."""

    def rate(step):
        t = jnp.asarray(step, jnp.float32) + 1
        return peak * jnp.minimum(1.0, t / max(warmup_steps, 1))

    return rate


def cooldown(schedule: Schedule, steps: int, last: int) -> Schedule:
    """`schedule`, with its last `last` of `steps` steps scaled in a straight line to 0 (Hägele et al. 2024).

    Up to there the training is the one of `schedule`: a run can be cooled down from any of its checkpoints.

    >>> [round(float(cooldown(constant(1.0), 8, 4)(step)), 3) for step in (0, 4, 5, 7, 9)]
    [1.0, 1.0, 0.75, 0.25, 0.0]
    """
    if not 0 < last <= steps:
        raise ValueError(f"a cooldown lasts between 1 and all {steps} steps of the training, got {last}")

    def rate(step):
        left = steps - jnp.asarray(step, jnp.float32)
        return schedule(step) * jnp.clip(left / last, 0, 1)

    return rate
