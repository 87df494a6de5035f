"""Functions applied before or inside `attention`: soft capping of logits, and normalization of queries and keys.

>>> import jax.numpy as jnp
>>> from jaxformer import functional as F
>>> query = key = value = jnp.ones((1, 3, 2, 4))
>>> query, key = F.qk_norm(query, key, scale=jnp.ones(4))
>>> F.attention(query, key, value, score=F.soft_cap(50.0)).shape
(1, 3, 2, 4)
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.functional.normalization import rms_norm


@dataclasses.dataclass(frozen=True)
class SoftCap:
    """The result of `soft_cap`; objects with equal caps compare equal, so a program is compiled once."""

    cap: float

    def __call__(self, logits: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
        return self.cap * jnp.tanh(logits / self.cap)


def soft_cap(cap: float) -> SoftCap:
    """Returns ``x -> cap tanh(x / cap)`` for the `score` of `attention` (Bello et al. 2016; Gemma 2).

    The logits stay between -cap and cap.

    Raises:
      ValueError: the cap is not above 0.

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(soft_cap(50.0)(jnp.array([-1e4, 1.0, 1e4]))).round(2))
    [-50.   1.  50.]
    """
    if cap <= 0:
        raise ValueError(f"cap must be above 0, got {cap}")
    return SoftCap(cap)


def qk_norm(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    scale: Float[Array, " H"],
    key_scale: Float[Array, " H"] | None = None,
    epsilon: float = 1e-6,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"]]:
    """Divides the queries and keys of each head by their root mean square, then scales them (QK-norm).

    Henry et al. 2020; Dehghani et al. 2023 (ViT-22B). The logits can no longer grow without bound in training.

    Args:
      scale: the scale of the queries, and of the keys unless `key_scale` is given.

    >>> import jax.numpy as jnp, numpy as np
    >>> query, key = qk_norm(jnp.full((1, 1, 1, 2), 100.0), jnp.full((1, 1, 1, 2), -3.0), scale=jnp.ones(2))
    >>> print(np.asarray(query[0, 0]).round(3), np.asarray(key[0, 0]).round(3))
    [[1. 1.]] [[-1. -1.]]
    """
    key_scale = scale if key_scale is None else key_scale
    return rms_norm(query, scale, epsilon=epsilon), rms_norm(key, key_scale, epsilon=epsilon)
