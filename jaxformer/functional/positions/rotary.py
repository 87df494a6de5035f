"""Rotary positions (Su et al. 2021, "RoFormer"), and the ways to stretch them beyond the trained length."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Frequencies(NamedTuple):
    """Radians a position for each pair of features, and what queries and keys are multiplied by."""

    radians: np.ndarray  # float64 [H / 2]
    amplitude: float = 1.0


Scaling = Callable[[Frequencies, float], Frequencies]
"""From frequencies and their base to others; see `linear_scaling` and the rest."""


def rotary(
    x: Float[Array, "B T N H"],
    positions: Int[Array, "*B T"],
    *,
    base: float = 10_000.0,
    scaling: Scaling | None = None,
    pairs: Literal["halves", "neighbors"] = "halves",
) -> Float[Array, "B T N H"]:
    r"""Turns each pair of features of a query or key by an angle that grows with its position.

    .. math:: (x_k, x_{k'}) \mapsto R(\omega_k t) (x_k, x_{k'}), \quad \omega_k = base^{-2k/H}

    The product of a turned query and a turned key depends on the difference of their positions alone.  Apply it to
    queries and keys before `attention`, and to keys before they go into a cache.

    Args:
      positions: ``[T]``, or ``[B, T]`` where examples differ, as when packed.
      scaling: how to change the frequencies for contexts longer than the trained one.
      pairs: feature k is paired with k + H/2 (GPT-NeoX, LLaMA), or 2k with 2k + 1 (the paper, GPT-J).

    Raises:
      ValueError: H is odd.

    >>> import jax.numpy as jnp, numpy as np
    >>> x = rotary(jnp.ones((1, 2, 1, 2)), jnp.arange(2))
    >>> print(np.asarray(x[0, :, 0]).round(2))
    [[ 1.    1.  ]
     [-0.3   1.38]]
    """
    dim = x.shape[-1]
    if dim % 2:
        raise ValueError(f"rotary positions turn pairs of features: head dim must be even, got {dim}")
    found = Frequencies(base ** (-np.arange(0, dim, 2) / dim))
    found = found if scaling is None else scaling(found, base)
    radians = jnp.asarray(found.radians, jnp.float32).reshape((1,) * positions.ndim + (-1,))
    angle = positions[..., None].astype(jnp.float32) * radians  # not a dot: an accelerator may round those
    angle = angle[None] if angle.ndim == 2 else angle  # [B | 1, T, H / 2]
    cos, sin = (f(angle)[:, :, None] * found.amplitude for f in (jnp.cos, jnp.sin))
    wide = x.astype(jnp.float32)
    if pairs == "halves":
        first, second = jnp.split(wide, 2, axis=-1)
        turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    elif pairs == "neighbors":
        first, second = wide[..., ::2], wide[..., 1::2]
        turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], -1).reshape(x.shape)
    else:
        raise ValueError(f"pairs must be 'halves' or 'neighbors', got {pairs!r}")
    return turned.astype(x.dtype)


def linear_scaling(factor: float) -> Scaling:
    """Positions divided by `factor` (Chen et al. 2023, "Extending context window ... by position interpolation").

    >>> linear_scaling(4.0)(Frequencies(np.array([1.0, 0.1])), 100.0).radians.tolist()
    [0.25, 0.025]
    """
    return lambda given, base: given._replace(radians=given.radians / factor)


def ntk_scaling(factor: float) -> Scaling:
    """A larger base, so that the slowest frequency is that of `linear_scaling` and the fastest unchanged ("NTK-aware").

    The base is multiplied by ``factor ** (H / (H - 2))`` (bloc97 2023; Peng et al. 2023, eq. 16).

    Raises:
      ValueError: when it is used, a head dim of 2.

    >>> ntk_scaling(4.0)(Frequencies(np.array([1.0, 0.1])), 100.0).radians.round(4).tolist()
    [1.0, 0.025]
    """

    def scale(given: Frequencies, base: float) -> Frequencies:
        dim = 2 * len(given.radians)
        if dim <= 2:
            raise ValueError(f"ntk_scaling needs a head dim above 2, got {dim}")
        larger = base * factor ** (dim / (dim - 2))
        return given._replace(radians=larger ** (-np.arange(0, dim, 2) / dim))

    return scale


def yarn_scaling(factor: float, length: int, *, fast: float = 32.0, slow: float = 1.0) -> Scaling:
    """YaRN (Peng et al. 2023): slow frequencies interpolated, fast ones kept, a ramp between, and sharper logits.

    Args:
      length: the context the model was trained on.
      fast, slow: turns over `length` above which a frequency is kept, and below which it is divided by `factor`.

    >>> found = yarn_scaling(4.0, length=2048)(Frequencies(np.array([1.0, 1e-2, 1e-4])), 1e6)
    >>> found.radians.round(6).tolist(), round(found.amplitude, 3)
    ([1.0, 0.00625, 2.5e-05], 1.139)
    """

    def scale(given: Frequencies, base: float) -> Frequencies:
        dim = 2 * len(given.radians)
        place = lambda turns: dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
        low, high = max(math.floor(place(fast)), 0), min(math.ceil(place(slow)), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
        radians = given.radians / factor * ramp + given.radians * (1 - ramp)
        return Frequencies(radians, given.amplitude * (0.1 * math.log(factor) + 1 if factor > 1 else 1.0))

    return scale


def llama3_scaling(factor: float, length: int, *, low: float = 1.0, high: float = 4.0) -> Scaling:
    """That of Llama 3.1: wavelengths beyond ``length / low`` divided by `factor`, below ``length / high`` kept.

    >>> llama3_scaling(8.0, length=8192)(Frequencies(np.array([1.0, 1e-4])), 5e5).radians.tolist()
    [1.0, 1.25e-05]
    """

    def scale(given: Frequencies, base: float) -> Frequencies:
        del base
        turns = length * given.radians / (2 * math.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return given._replace(radians=given.radians * ((1 - smooth) / factor + smooth))

    return scale
