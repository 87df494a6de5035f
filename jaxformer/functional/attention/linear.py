"""Linear attention: a product of feature maps in place of the softmax, so that the sum over keys is done once.

Katharopoulos et al. 2020, "Transformers are RNNs".  Three forms of one function: parallel, causal in chunks, and a
recurrent step whose state does not grow with the length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

FeatureMap = Callable[[jax.Array], jax.Array]
"""From ``[..., H]`` to ``[..., R]``, elementwise positive."""


def elu_plus_one(x: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
    """``elu(x) + 1``, the feature map of the paper (eq. 7).

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(elu_plus_one(jnp.array([-1., 0., 2.]))).round(3))
    [0.368 1.    3.   ]
    """
    return jax.nn.elu(x) + 1


class LinearState(NamedTuple):
    """What `linear_attention_step` carries: sums over the keys so far, float32.

    >>> linear_attention_start(1, 2, features=4, value_dim=3).mixed.shape        # at every length
    (1, 2, 4, 3)
    """

    mixed: jax.Array  # [B, N, R, J], of features times values
    weight: jax.Array  # [B, N, R], of features


def linear_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N J"],
    *,
    feature_map: FeatureMap = elu_plus_one,
    causal: bool = False,
    valid: Bool[Array, "B S"] | None = None,
    chunk: int = 128,
) -> Float[Array, "B T N J"]:
    r"""Attention with the kernel :math:`\phi(q) \cdot \phi(k)`, in time and memory linear in the length.

    .. math:: y_t = \frac{\phi(q_t)^\top \sum_s \phi(k_s) v_s^\top}{\phi(q_t)^\top \sum_s \phi(k_s)}

    with sums over ``s <= t`` if `causal`.  A general mask would cost what it saves, so there is only `valid`.

    Args:
      valid: True where a key is real; the others are inert, and a query that sees none gets 0.
      chunk: positions worked on at a time in the causal form; the result does not depend on it.

    Raises:
      ValueError: causal, with other numbers of queries than of keys; or head counts that differ.

    >>> import jax.numpy as jnp
    >>> x, value = jnp.zeros((1, 3, 1, 2)), jnp.array([1., 3., 5.]).reshape(1, 3, 1, 1)
    >>> linear_attention(x, x, value, causal=True).ravel().tolist()        # keys all alike: the mean so far
    [1.0, 2.0, 3.0]
    """
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"linear attention has as many key heads as query heads, got {query.shape[2]}, {key.shape[2]}")
    if causal and query.shape[1] != key.shape[1]:
        raise ValueError(f"causal linear attention needs T = S, got {query.shape[1]} and {key.shape[1]}")
    real = None if valid is None else valid[..., None, None]
    if real is not None:  # before the feature map too, whose slope at a NaN is one
        key, value = (jnp.where(real, x, 0) for x in (key, value))
    queries, keys = (feature_map(x).astype(jnp.float32) for x in (query, key))
    keys = keys if real is None else jnp.where(real, keys, 0)
    wide = value.astype(jnp.float32)
    if causal:
        return _causal(queries, keys, wide, chunk).astype(query.dtype)
    state = LinearState(jnp.einsum("bsnr,bsnj->bnrj", keys, wide), keys.sum(1))
    return _read(queries, state).astype(query.dtype)


def linear_attention_step(
    query: Float[Array, "B N H"],
    key: Float[Array, "B N H"],
    value: Float[Array, "B N J"],
    state: LinearState,
    *,
    feature_map: FeatureMap = elu_plus_one,
) -> tuple[Float[Array, "B N J"], LinearState]:
    """One more position of the causal form: the row of `linear_attention`, and the grown state.

    >>> import jax.numpy as jnp
    >>> x, state = jnp.zeros((1, 1, 2)), linear_attention_start(1, 1, features=2, value_dim=1)
    >>> first, state = linear_attention_step(x, x, jnp.full((1, 1, 1), 1.0), state)
    >>> second, state = linear_attention_step(x, x, jnp.full((1, 1, 1), 3.0), state)
    >>> first.item(), second.item()
    (1.0, 2.0)
    """
    queries, keys = (feature_map(x).astype(jnp.float32) for x in (query, key))
    mixed = state.mixed + keys[..., None] * value.astype(jnp.float32)[..., None, :]
    state = LinearState(mixed, state.weight + keys)
    return _read(queries[:, None], state)[:, 0].astype(query.dtype), state


def linear_attention_start(batch: int, num_heads: int, features: int, value_dim: int) -> LinearState:
    """The state before the first position.

    >>> [x.shape for x in linear_attention_start(1, 2, features=4, value_dim=3)]
    [(1, 2, 4, 3), (1, 2, 4)]
    """
    return LinearState(jnp.zeros((batch, num_heads, features, value_dim)), jnp.zeros((batch, num_heads, features)))


def _read(queries: Array, state: LinearState) -> Array:
    above = jnp.einsum("btnr,bnrj->btnj", queries, state.mixed)
    return _divide(above, jnp.einsum("btnr,bnr->btn", queries, state.weight))


def _divide(above: Array, below: Array) -> Array:
    """A query that no key speaks to gets 0."""
    return above / jnp.where(below == 0, 1.0, below)[..., None]


def _causal(queries: Array, keys: Array, values: Array, chunk: int) -> Array:
    """Within a chunk as masked products, from earlier chunks by their sums."""
    batch, length, heads, features = queries.shape
    chunk = min(chunk, max(length, 1))
    count = -(-length // chunk)
    pad = lambda x: jnp.pad(x, ((0, 0), (0, count * chunk - length), (0, 0), (0, 0)))
    split = lambda x: jnp.moveaxis(pad(x).reshape(batch, count, chunk, heads, -1), 1, 0)
    earlier = jnp.tril(jnp.ones((1, 1, chunk, chunk)))

    def one(state: LinearState, given: tuple[Array, Array, Array]) -> tuple[LinearState, Array]:
        queries, keys, values = given
        inside = jnp.einsum("btnr,bsnr->bnts", queries, keys) * earlier
        above = jnp.einsum("bnts,bsnj->btnj", inside, values) + jnp.einsum("btnr,bnrj->btnj", queries, state.mixed)
        below = jnp.moveaxis(inside.sum(-1), 1, 2) + jnp.einsum("btnr,bnr->btn", queries, state.weight)
        mixed = state.mixed + jnp.einsum("bsnr,bsnj->bnrj", keys, values)
        return LinearState(mixed, state.weight + keys.sum(1)), _divide(above, below)

    start = linear_attention_start(batch, heads, features, values.shape[-1])
    _, found = jax.lax.scan(one, start, (split(queries), split(keys), split(values)))
    return jnp.moveaxis(found, 0, 1).reshape(batch, count * chunk, heads, -1)[:, :length]
