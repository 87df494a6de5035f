"""Learning rates as functions of the step."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array | int], jax.Array]
"""Step, counted from 0 for the first update, to learning rate."""


def inverse_sqrt(peak: float, warmup: int) -> Schedule:
    r"""Linear warm-up to `peak`, then decay with the square root of the step (Vaswani et al. 2017, eq. 3).

    .. math:: lr(t) = peak \cdot \min(t / w, \sqrt{w / t}), \quad t = step + 1

    >>> [round(float(inverse_sqrt(1.0, 4)(step)), 3) for step in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    """
    if warmup < 1:
        raise ValueError(f"inverse_sqrt needs a warm-up of at least one step, got {warmup}")

    def rate(step):
        t = jnp.asarray(step, jnp.float32) + 1
        return peak * jnp.minimum(t / warmup, jnp.sqrt(warmup / t))

    return rate


def noam_peak(width: int, warmup: int, factor: float = 1.0) -> float:
    """The peak of the paper's schedule, ``factor * (width * warmup) ** -0.5``; 7.0e-4 at D = 512 and 4,000 steps."""
    return factor * (width * warmup) ** -0.5


def cosine(peak: float, warmup: int, steps: int, *, end: float = 0.0) -> Schedule:
    """Linear warm-up to `peak`, then half a cosine down to `end` at `steps` (Loshchilov and Hutter 2017)."""
    if steps <= warmup:
        raise ValueError(f"cosine decays between warm-up and the last step, got warmup={warmup}, steps={steps}")

    def rate(step):
        t = jnp.asarray(step, jnp.float32) + 1
        progress = jnp.clip((t - warmup) / (steps - warmup), 0, 1)
        decayed = end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return jnp.where(t < warmup, peak * t / max(warmup, 1), decayed)

    return rate


def constant(peak: float, warmup: int = 0) -> Schedule:
    """Linear warm-up to `peak`, then `peak`."""

    def rate(step):
        t = jnp.asarray(step, jnp.float32) + 1
        return peak * jnp.minimum(1.0, t / max(warmup, 1))

    return rate
