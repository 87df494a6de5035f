"""Linear attention: a product of feature maps replaces the softmax, so the sum over keys is computed once.

Katharopoulos et al. 2020, "Transformers are RNNs". The same function has three forms: parallel, causal in chunks, and a
recurrent step whose state does not grow with the length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.axes import vary_alike
from jaxformer.functional.tokens import clear_padding
from jaxformer.reprs import brief

FeatureMap = Callable[[jax.Array], jax.Array]
"""A function of ``[..., H]`` that returns ``[..., R]`` with positive elements."""


def elu_plus_one(x: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
    """Returns ``elu(x) + 1``, the feature map of the paper (eq. 7).

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(elu_plus_one(jnp.array([-1., 0., 2.]))).round(3))
    [0.368 1.    3.   ]
    """
    # Below 0 it is exp(x), which elu(x) + 1 would round to 0.
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


class LinearState(NamedTuple):
    """The state of `linear_attention_step`: sums over the keys so far, float32.

    >>> linear_attention_start(1, 2, features=4, value_dim=3).mixed.shape        # the same at every length
    (1, 2, 4, 3)
    """

    mixed: jax.Array  # [B, N, R, J], the sum of features times values
    weight: jax.Array  # [B, N, R], the sum of features

    __repr__ = brief


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
    r"""Computes attention with the kernel :math:`\phi(q) \cdot \phi(k)`, in time and memory linear in the length.

    .. math:: y_t = \frac{\phi(q_t)^\top \sum_s \phi(k_s) v_s^\top}{\phi(q_t)^\top \sum_s \phi(k_s)}

    The sums are over ``s <= t`` if `causal`. A general mask would cost as much as this form saves, so only `valid` is
    supported. The features of each query are divided by the largest of them, which does not change the quotient. The
    features of keys are not rescaled: below 1e-38 they are 0, which with the default map happens for elements below
    -87. A query whose features are all 0, or that sees only keys whose features are all 0, gets 0.

    Args:
      valid: True where a key is a real token; the other keys are inert, and a query that sees no key gets 0.
      chunk: the number of positions computed at a time in the causal form; the result does not depend on it.

    Raises:
      ValueError: shapes do not match, `causal` with different numbers of queries and keys, or `chunk` is below 1.

    >>> import jax.numpy as jnp
    >>> x, value = jnp.zeros((1, 3, 1, 2)), jnp.array([1., 3., 5.]).reshape(1, 3, 1, 1)
    >>> linear_attention(x, x, value, causal=True).ravel().tolist()        # equal keys: the mean so far
    [1.0, 2.0, 3.0]
    """
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"query and key head counts must be equal, got {query.shape[2]} and {key.shape[2]}")
    if key.shape[0] != query.shape[0] or value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"query, key and value must agree in batch, key and value in length and heads; got {list(query.shape)}, "
            f"{list(key.shape)}, {list(value.shape)}"
        )
    if valid is not None and valid.shape != key.shape[:2]:
        raise ValueError(f"valid must have shape [B, S] = {list(key.shape[:2])}, got {list(valid.shape)}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if causal and query.shape[1] != key.shape[1]:
        raise ValueError(f"causal linear attention must have T = S, got {query.shape[1]} and {key.shape[1]}")
    key, value = (clear_padding(x, valid) for x in (key, value))  # before the feature map: its gradient at NaN is NaN
    queries, keys = (feature_map(x.astype(jnp.float32)) for x in (query, key))
    keys, values = clear_padding(keys, valid), value.astype(jnp.float32)
    if causal:
        return _causal(queries, keys, values, chunk).astype(query.dtype)
    state = LinearState(jnp.einsum("bsnr,bsnj->bnrj", keys, values), keys.sum(1))
    return _read(queries, state).astype(query.dtype)


def linear_attention_step(
    query: Float[Array, "B N H"],
    key: Float[Array, "B N H"],
    value: Float[Array, "B N J"],
    state: LinearState,
    *,
    feature_map: FeatureMap = elu_plus_one,
) -> tuple[Float[Array, "B N J"], LinearState]:
    """Computes one step of the causal form; returns the next row of `linear_attention` and the next state.

    >>> import jax.numpy as jnp
    >>> x, state = jnp.zeros((1, 1, 2)), linear_attention_start(1, 1, features=2, value_dim=1)
    >>> first, state = linear_attention_step(x, x, jnp.full((1, 1, 1), 1.0), state)
    >>> second, state = linear_attention_step(x, x, jnp.full((1, 1, 1), 3.0), state)
    >>> first.item(), second.item()
    (1.0, 2.0)
    """
    queries, keys = (feature_map(x.astype(jnp.float32)) for x in (query, key))
    mixed = state.mixed + keys[..., None] * value.astype(jnp.float32)[..., None, :]
    state = LinearState(mixed, state.weight + keys)
    return _read(queries[:, None], state)[:, 0].astype(query.dtype), state


def linear_attention_start(batch: int, num_heads: int, features: int, value_dim: int) -> LinearState:
    """Returns the state before the first position.

    >>> [x.shape for x in linear_attention_start(1, 2, features=4, value_dim=3)]
    [(1, 2, 4, 3), (1, 2, 4)]
    """
    shape = batch, num_heads, features
    return LinearState(jnp.zeros((*shape, value_dim), jnp.float32), jnp.zeros(shape, jnp.float32))


def _scaled(queries: Array) -> Array:
    """Divides the features of each query by their maximum: otherwise a product of two small features would be 0."""
    top = jax.lax.stop_gradient(queries.max(-1, keepdims=True, initial=0.0))
    return queries / jnp.where(top < jnp.finfo(jnp.float32).tiny, 1.0, top)


def _read(queries: Array, state: LinearState) -> Array:
    queries = _scaled(queries)
    numerator = jnp.einsum("btnr,bnrj->btnj", queries, state.mixed)
    return _divide(numerator, jnp.einsum("btnr,bnr->btn", queries, state.weight))


def _divide(numerator: Array, denominator: Array) -> Array:
    """Returns the quotient, or 0 for a query that sees no key."""
    denominator = jnp.where(denominator == 0, 1.0, denominator)[..., None]
    # Both are divided first, because the gradient of a quotient contains the squared denominator, which may be 0.
    size = jax.lax.stop_gradient(denominator)
    return numerator / size / (denominator / size)


def _causal(queries: Array, keys: Array, values: Array, chunk: int) -> Array:
    """Computes the causal form: masked products within a chunk, plus the sums of earlier chunks."""
    queries = _scaled(queries)
    batch, length, heads, features = queries.shape
    if isinstance(length, int):  # a symbolic length has no minimum
        chunk = min(chunk, max(length, 1))
    count = -(-length // chunk)
    pad = lambda x: jnp.pad(x, ((0, 0), (0, count * chunk - length), (0, 0), (0, 0)))
    split = lambda x: jnp.moveaxis(pad(x).reshape(batch, count, chunk, heads, x.shape[-1]), 1, 0)
    causal_mask = jnp.tril(jnp.ones((1, 1, chunk, chunk), jnp.float32))

    def visit(state: LinearState, inputs: tuple[Array, Array, Array]) -> tuple[LinearState, Array]:
        queries, keys, values = inputs
        scores = jnp.einsum("btnr,bsnr->bnts", queries, keys) * causal_mask
        numerator = jnp.einsum("bnts,bsnj->btnj", scores, values)
        numerator += jnp.einsum("btnr,bnrj->btnj", queries, state.mixed)
        denominator = jnp.moveaxis(scores.sum(-1), 1, 2) + jnp.einsum("btnr,bnr->btn", queries, state.weight)
        mixed = state.mixed + jnp.einsum("bsnr,bsnj->bnrj", keys, values)
        return LinearState(mixed, state.weight + keys.sum(1)), _divide(numerator, denominator)

    start = linear_attention_start(batch, heads, features, values.shape[-1])
    chunks = split(queries), split(keys), split(values)
    _, outputs = jax.lax.scan(visit, *vary_alike((start, chunks)))
    return jnp.moveaxis(outputs, 0, 1).reshape(batch, count * chunk, *values.shape[2:])[:, :length]
