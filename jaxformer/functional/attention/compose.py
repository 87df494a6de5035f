"""Small functions applied before or inside `attention`: soft-capped logits, normalized queries and keys, sinks.

>>> import jax.numpy as jnp
>>> from jaxformer import functional as F
>>> query = key = value = jnp.ones((1, 3, 2, 4))
>>> query, key = F.qk_norm(query, key, scale=jnp.ones(4))
>>> key, value, mask, bias = F.with_sinks(key, value, jnp.zeros(2))
>>> F.attention(query, key, value, mask=mask, bias=bias, score=F.soft_cap(50.0)).shape
(1, 3, 2, 4)
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.functional.bias import Bias
from jaxformer.functional.normalization import rms_norm
from jaxformer.masks import Mask, as_mask

_static = {"static": True}


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
      scale: the scale of the queries, and of the keys if there is no `key_scale`.

    >>> import jax.numpy as jnp, numpy as np
    >>> query, key = qk_norm(jnp.full((1, 1, 1, 2), 100.0), jnp.full((1, 1, 1, 2), -3.0), scale=jnp.ones(2))
    >>> print(np.asarray(query[0, 0]).round(3), np.asarray(key[0, 0]).round(3))
    [[1. 1.]] [[-1. -1.]]
    """
    key_scale = scale if key_scale is None else key_scale
    return rms_norm(query, scale, epsilon=epsilon), rms_norm(key, key_scale, epsilon=epsilon)


def with_sinks(
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K J"],
    sinks: Float[Array, " N"],
    *,
    mask: Mask | Bool[Array, ...] | None = None,
    bias: Bias | None = None,
) -> tuple[Float[Array, "B S2 K H"], Float[Array, "B S2 K J"], Mask | None, Bias]:
    """Appends an attention sink: one more position whose key and value are 0 and which every query sees.

    A head with nothing to attend to puts its weight there, and its weights over the real keys sum to less than 1.
    `sinks` are the learned logits of that position, one for each head (OpenAI 2025, gpt-oss). Xiao et al. 2023 explain
    why sinks are needed.

    Returns:
      Key, value, mask and bias for `attention`.

    >>> import jax.numpy as jnp
    >>> from jaxformer import functional as F
    >>> key, value, mask, bias = with_sinks(jnp.zeros((1, 1, 1, 2)), jnp.ones((1, 1, 1, 2)), jnp.zeros(1))
    >>> F.attention(jnp.ones((1, 1, 1, 2)), key, value, mask=mask, bias=bias).tolist()  # half the weight is the sink's
    [[[[0.5, 0.5]]]]
    """
    num_keys = key.shape[1]
    key, value = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (key, value))
    sink_mask = None if mask is None else SinkMask(as_mask(mask), num_keys)
    return key, value, sink_mask, SinkBias(sinks, bias, num_keys)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SinkMask(Mask):
    """A mask over the first `at` keys, and key `at`, which every query sees."""

    mask: Mask
    at: int = dataclasses.field(metadata=_static)

    def tile(self, query_index, key_index):
        inner = self.mask.tile(query_index, jnp.minimum(key_index, self.at - 1))
        return inner | (key_index == self.at)[None, None, None]

    def at_positions(self, query, key):
        return SinkMask(self.mask.at_positions(query, key[:, : self.at]), self.at)

    def check(self, num_queries, num_keys):
        if num_keys != self.at + 1:
            raise ValueError(f"a mask with sinks must cover S = {num_keys} keys, got {self.at + 1}")
        self.mask.check(num_queries, self.at)

    def key_range(self, query_start, query_stop):
        return self.mask.key_range(query_start, query_stop)[0], self.at + 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SinkBias(Bias):
    """The logits of the sinks at key `at`, and the inner bias elsewhere."""

    sinks: jax.Array  # [N]
    bias: Bias | None
    at: int = dataclasses.field(metadata=_static)

    def tile(self, query, query_index, key_index):
        inner = jnp.zeros((1, 1, 1, 1), jnp.float32)
        if self.bias is not None:
            inner = self.bias.tile(query, query_index, jnp.minimum(key_index, self.at - 1)).astype(jnp.float32)
        sinks = self.sinks.astype(jnp.float32).reshape(1, -1, 1, 1)
        return jnp.where((key_index == self.at)[None, None, None], sinks, inner)

    def at_positions(self, query, query_positions, key_positions):
        if self.bias is None:
            return self
        inner = self.bias.at_positions(query, query_positions, key_positions[:, : self.at])
        return SinkBias(self.sinks, inner, self.at)

    def take_heads(self, first, count):
        bias = None if self.bias is None else self.bias.take_heads(first, count)
        return SinkBias(jax.lax.dynamic_slice_in_dim(self.sinks, first, count, 0), bias, self.at)
