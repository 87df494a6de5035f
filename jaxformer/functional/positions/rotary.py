"""Rotary positions (Su et al. 2021, "RoFormer"), and their scaling to contexts longer than in training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxformer.functional.attention.base import row_of_positions
from jaxformer.reprs import brief


class Frequencies(NamedTuple):
    """The radians per position for each pair of features, and a factor for queries and keys.

    >>> halved = lambda frequencies, base: Frequencies(frequencies.radians / 2)  # a `RotaryScaling`
    >>> x = rotary(jnp.ones((1, 3, 1, 2)), scaling=halved)
    >>> bool(jnp.allclose(x[:, 2], rotary(jnp.ones((1, 3, 1, 2)))[:, 1]))
    True
    """

    radians: np.ndarray  # float64 [H / 2]
    amplitude: float = 1.0

    __repr__ = brief


RotaryScaling = Callable[[Frequencies, float], Frequencies]
"""A function of frequencies and their base that returns other frequencies, such as `linear_scaling`."""


def rotary(
    x: Float[Array, "B T N H"],
    positions: Int[ArrayLike, "*B T"] | None = None,
    *,
    base: float = 10_000.0,
    scaling: RotaryScaling | None = None,
    pairs: Literal["halves", "neighbors"] = "halves",
) -> Float[Array, "B T N H"]:
    r"""Rotates each pair of features of a query or key by an angle proportional to its position.

    .. math:: (x_k, x_{k'}) \mapsto R(\omega_k t) (x_k, x_{k'}), \quad \omega_k = base^{-2k/H}

    The product of a rotated query and a rotated key depends only on the difference of their positions. Rotate queries
    and keys before `attention`, and keys before they go into a cache.

    Args:
      positions: ``[T]``, or ``[B, T]`` if examples differ, as in packed batches; 0, 1, 2, ... by default.
      scaling: a change of the frequencies for contexts longer than in training.
      pairs: "halves" pairs feature k with k + H/2 (GPT-NeoX, LLaMA); "neighbors" pairs 2k with 2k + 1 (the paper,
        GPT-J).

    Raises:
      ValueError: H is odd, positions have another shape, or `pairs` is unknown.

    >>> import jax.numpy as jnp, numpy as np
    >>> x = rotary(jnp.ones((1, 2, 1, 2)), jnp.arange(2))
    >>> print(np.asarray(x[0, :, 0]).round(2))
    [[ 1.    1.  ]
     [-0.3   1.38]]
    """
    dim = x.shape[-1]
    if dim % 2:
        raise ValueError(f"head dim must be even to rotate pairs of features, got {dim}")
    batch, length = x.shape[:2]
    if positions is not None and np.shape(positions) not in ((length,), (1, length), (batch, length)):
        raise ValueError(f"positions must be [T] or [B, T] of x {list(x.shape)}, got shape {list(np.shape(positions))}")
    frequencies = Frequencies(base ** (-np.arange(0, dim, 2) / dim))
    if scaling is not None:
        frequencies = scaling(frequencies, base)
    if positions is None:
        positions = row_of_positions(length)
    cos, sin = _rotation(positions, frequencies)
    features = x.astype(jnp.float32)
    if pairs == "halves":
        first, second = jnp.split(features, 2, axis=-1)
        rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    elif pairs == "neighbors":
        first, second = features[..., ::2], features[..., 1::2]
        rotated = jnp.stack([first * cos - second * sin, second * cos + first * sin], -1).reshape(x.shape)
    else:
        raise ValueError(f"pairs must be 'halves' or 'neighbors', got {pairs!r}")
    return rotated.astype(x.dtype)


def _rotation(positions: ArrayLike, frequencies: Frequencies) -> tuple[Array, Array]:
    """Returns cosines and sines, float32 ``[B | 1, T, 1, H / 2]``.

    For positions in a NumPy array, they are constants of the program, computed once in float64.
    """
    if isinstance(positions, np.ndarray):
        angle, cos, sin = positions[..., None] * frequencies.radians, np.cos, np.sin
    else:
        positions = jnp.asarray(positions)
        radians = jnp.asarray(frequencies.radians, jnp.float32).reshape((1,) * positions.ndim + (-1,))
        angle = positions[..., None].astype(jnp.float32) * radians  # not a matrix product, which may be rounded
        cos, sin = jnp.cos, jnp.sin
    if angle.ndim == 2:
        angle = angle[None]
    scaled = lambda waves: jnp.asarray(waves[:, :, None] * frequencies.amplitude, jnp.float32)
    return scaled(cos(angle)), scaled(sin(angle))


def linear_scaling(factor: float) -> RotaryScaling:
    """Divides positions by `factor` (Chen et al. 2023, "Extending context window ... by position interpolation").

    >>> linear_scaling(4.0)(Frequencies(np.array([1.0, 0.1])), 100.0).radians.tolist()
    [0.25, 0.025]
    """
    return lambda frequencies, base: frequencies._replace(radians=frequencies.radians / factor)


def ntk_scaling(factor: float) -> RotaryScaling:
    """Enlarges the base ("NTK-aware"): the slowest frequency equals `linear_scaling`'s, the fastest is unchanged.

    The base is multiplied by ``factor ** (H / (H - 2))`` (bloc97 2023; Peng et al. 2023, eq. 16).

    Raises:
      ValueError: the head dim is 2, when the scaling is applied.

    >>> ntk_scaling(4.0)(Frequencies(np.array([1.0, 0.1])), 100.0).radians.round(4).tolist()
    [1.0, 0.025]
    """

    def scale(frequencies: Frequencies, base: float) -> Frequencies:
        dim = 2 * len(frequencies.radians)
        if dim <= 2:
            raise ValueError(f"head dim must be above 2 for ntk_scaling, got {dim}")
        larger = base * factor ** (dim / (dim - 2))
        return frequencies._replace(radians=larger ** (-np.arange(0, dim, 2) / dim))

    return scale


def yarn_scaling(factor: float, length: int, *, fast: float = 32.0, slow: float = 1.0) -> RotaryScaling:
    """Interpolates slow frequencies, keeps fast ones, with a ramp in between, and sharpens logits (YaRN).

    Peng et al. 2023, "YaRN: efficient context window extension of large language models".

    Args:
      length: the context length that the model was trained on.
      fast, slow: a frequency with more than `fast` turns over `length` is kept, and one with fewer than `slow` turns is
        divided by `factor`.

    >>> scaled = yarn_scaling(4.0, length=2048)(Frequencies(np.array([1.0, 1e-2, 1e-4])), 1e6)
    >>> scaled.radians.round(6).tolist(), round(scaled.amplitude, 3)
    ([1.0, 0.00625, 2.5e-05], 1.139)
    """

    def scale(frequencies: Frequencies, base: float) -> Frequencies:
        dim = 2 * len(frequencies.radians)
        index = lambda turns: dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
        low, high = max(math.floor(index(fast)), 0), min(math.ceil(index(slow)), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
        radians = frequencies.radians / factor * ramp + frequencies.radians * (1 - ramp)
        return Frequencies(radians, frequencies.amplitude * (0.1 * math.log(max(factor, 1.0)) + 1))

    return scale


def llama3_scaling(factor: float, length: int, *, low: float = 1.0, high: float = 4.0) -> RotaryScaling:
    """Divides the frequencies of long wavelengths by `factor` and keeps those of short wavelengths, as in Llama 3.1.

    Wavelengths are long above ``length / low`` and short below ``length / high``; between them the change is gradual.

    >>> llama3_scaling(8.0, length=8192)(Frequencies(np.array([1.0, 1e-4])), 5e5).radians.tolist()
    [1.0, 1.25e-05]
    """

    def scale(frequencies: Frequencies, base: float) -> Frequencies:
        turns = length * frequencies.radians / (2 * math.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return frequencies._replace(radians=frequencies.radians * ((1 - smooth) / factor + smooth))

    return scale
