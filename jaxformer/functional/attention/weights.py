"""Attention weights for inspection, recomputed from queries and keys, so that attention need not store them.

Capture the queries and keys of a layer (``EncoderDecoder.captured``), then compute the weights of some heads and rows.
For sequences too long for a T x S array, compute the entropy and the largest weights, some rows at a time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxformer.functional.attention import api, reference
from jaxformer.functional.attention.base import Request, ScoreFunction, make_request
from jaxformer.functional.bias import Bias, dense_bias
from jaxformer.functional.hard_attention import weights_entropy
from jaxformer.masks import Mask, dense
from jaxformer.masks.algebra import take
from jaxformer.reprs import brief

ROWS = 128
"""The number of query rows to compute at a time."""


ResultT = TypeVar("ResultT")
"""Arrays ``[B, N, T, ...]``, one row for each query."""


class WeightOptions(TypedDict, total=False):
    """The options of `attention` that determine its weights."""

    mask: Mask | Bool[Array, ...] | None
    bias: Float[Array, ...] | Bias | None
    scale: float | Float[Array, ""] | None
    score: ScoreFunction | None
    sinks: Float[Array, " N"] | None


def attention_weights(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    rows: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    **arguments: Unpack[WeightOptions],
) -> Float[Array, "B heads rows S"]:
    """Returns the attention weights of the chosen heads and query rows (all by default).

    The other arguments are the same as for `attention`. With sinks, rows sum to less than 1.

    Raises:
      ValueError: shapes do not match, or a row or head does not exist.

    >>> import jax.numpy as jnp
    >>> from jaxformer import masks
    >>> x = jnp.zeros((1, 3, 2, 4))
    >>> attention_weights(x, x, mask=masks.causal(), rows=[1], heads=[0]).tolist()
    [[[[0.5, 0.5, 0.0]]]]
    """
    request = make_request(query, key, key, **arguments)
    head_index = indices("heads", heads, query.shape[2])
    num_queries = query.shape[1]  # may be symbolic
    row_index = jnp.arange(num_queries) if rows is None else jnp.asarray(indices("rows", rows, num_queries))
    return _weights(request, row_index.astype(jnp.int32), head_index)


def weights_of(
    attention: Callable[..., Array],
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    rows: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    **arguments: Unpack[WeightOptions],
) -> Float[Array, "B heads rows S"]:
    r"""Returns the weights of any attention function: its maps, of the chosen heads and rows (all by default).

    An attention that is linear in its values gives its weights as its output for the identity:
    :math:`A = A I`. It is called once for each H keys, and the peak memory is twice that of the result, which is 2 GiB
    for each 4 heads of 8,192 queries and keys of one example. `attention` itself computes only the chosen rows and
    heads. A function that is not linear in its values has an attribute or method
    ``weights(query, key, **arguments)``, which returns its maps ``[B, M, T, S]`` for any number M; then `heads` chooses
    among these.

    Args:
      arguments: the arguments of the attention function that determine its weights; None is not passed to it.

    Raises:
      ValueError: a row or a map does not exist, or the function returns another shape.

    >>> def uniform(query, key, value):
    ...     return jnp.broadcast_to(value.mean(1, keepdims=True), query.shape)
    >>> x = jnp.ones((1, 3, 2, 4))
    >>> weights_of(uniform, x, x, rows=[1], heads=[0]).round(3).tolist()[0][0][0]
    [0.3330000042915344, 0.3330000042915344, 0.3330000042915344]
    """
    attention, keywords = unbound(attention)
    settings = keywords | {name: x for name, x in arguments.items() if x is not None}
    offered = offered_weights(attention)
    if api.attention is attention or offered is attention_weights:
        known = {name: x for name, x in settings.items() if name not in ("implementation", "dropout")}
        return attention_weights(query, key, rows=rows, heads=heads, **cast(WeightOptions, known))
    if offered is not None:
        maps = offered(query, key, **settings)
    else:
        maps = _by_identity(functools.partial(attention, **settings), query, key)
    expected = query.shape[0], query.shape[1], key.shape[1]
    if maps.ndim != 4 or (maps.shape[0], *maps.shape[2:]) != expected:
        raise ValueError(f"weights must be maps [B, M, T, S] with B, T, S = {expected}, got shape {list(maps.shape)}")
    return chosen_maps(maps, rows, heads)


def chosen_maps(
    maps: Float[Array, "B M T S"], rows: Sequence[int] | None, heads: Sequence[int] | None
) -> Float[Array, "B heads rows S"]:
    """Returns the chosen heads and rows of maps, all by default.

    Raises:
      ValueError: a row or a head does not exist.
    """
    if heads is not None:
        maps = maps[:, indices("heads", heads, maps.shape[1])]
    return maps if rows is None else maps[:, :, indices("rows", rows, maps.shape[2])]


def unbound(attention: Callable[..., ResultT]) -> tuple[Callable[..., ResultT], dict[str, Any]]:
    """Returns the function inside partials that bind keyword arguments only, and these."""
    keywords: dict[str, Any] = {}
    while isinstance(attention, functools.partial) and not attention.args:
        attention, keywords = attention.func, attention.keywords | keywords
    return attention, keywords


def offered_weights(attention: object) -> Callable[..., Array] | None:
    """Returns the function `weights` of an attention function, or None; a parameter of that name is no function."""
    offered = getattr(attention, "weights", None)
    return offered if inspect.isroutine(offered) or isinstance(offered, functools.partial) else None


def _by_identity(attention: Callable[..., Array], query: Array, key: Array) -> Array:
    """Returns the output of attention for values that are the identity, ``[B, N, T, S]``, H columns at a time."""
    dtype = np.promote_types(query.dtype, np.float32)
    query, key = query.astype(dtype), key.astype(dtype)
    num_keys, size = key.shape[1], key.shape[3]

    def columns(first: Array) -> Array:
        identity = jnp.arange(num_keys)[:, None] == first + jnp.arange(size)[None]
        return attention(query, key, jnp.broadcast_to(identity[None, :, None].astype(dtype), key.shape))

    outputs = jax.lax.map(columns, jnp.arange(0, num_keys, size))  # [blocks, B, T, N, H]
    joined = jnp.moveaxis(outputs, (1, 3, 2, 0, 4), (0, 1, 2, 3, 4))
    return joined.reshape(*joined.shape[:3], joined.shape[3] * size)[..., :num_keys]


def attention_entropy(
    query: Float[Array, "B T N H"], key: Float[Array, "B S K H"], **arguments: Unpack[WeightOptions]
) -> Float[Array, "B N T"]:
    """Returns the entropy of each query's weights in nats; memory is O(S).

    It is 0 if all weight is on one key, log S if it is spread evenly, and 0 in an empty row. With sinks it is the
    entropy over the keys and the sink together: the weight of the sink is 1 minus the sum of the `attention_weights`.
    The other arguments are the same as for `attention`.

    Raises:
      ValueError: shapes do not match.

    >>> import jax.numpy as jnp, numpy as np
    >>> from jaxformer import masks
    >>> x = jnp.zeros((1, 3, 1, 4))
    >>> print(np.exp(attention_entropy(x, x, mask=masks.causal())).round(3))        # the number of keys
    [[[1. 2. 3.]]]
    """
    request = make_request(query, key, key, **arguments)
    return _by_rows(request, lambda rows, weights: _entropy(request, weights))


class AttentionStatistics(NamedTuple):
    """Statistics of the attention of each query, ``[B, N, T]``; all are 0 in an empty row.

    >>> import jax.numpy as jnp
    >>> attention_statistics(*jnp.zeros((2, 1, 4, 1, 8))).top_weight.tolist()
    [[[0.25, 0.25, 0.25, 0.25]]]
    """

    entropy: jax.Array
    """The entropy of the weights in nats: log S if spread evenly, 0 if saturated; it includes a sink."""
    top_weight: jax.Array
    """The largest weight of a key: 1 / S if spread evenly, 1 if saturated, less with sinks."""
    slope: jax.Array
    """The largest derivative ``a (1 - a)`` of a weight with respect to its own logit: at most 1/4, and 0 if saturated,
    so that no gradient passes."""
    variance: jax.Array
    """The variance of the scaled dot products over the keys that the query may attend to, before score and bias."""

    __repr__ = brief


def attention_statistics(
    query: Float[Array, "B T N H"], key: Float[Array, "B S K H"], **arguments: Unpack[WeightOptions]
) -> AttentionStatistics:
    r"""Returns statistics that show whether the softmax of each query is saturated.

    Memory is O(S). The arguments are the same as for `attention`. A sink counts in the
    entropy only; the other statistics are computed from the weights and logits of keys.

    With unit variances, :math:`\mathrm{Var}(q \cdot k) = H` and the softmax saturates as H grows; the default scale
    :math:`H^{-1/2}` keeps the variance at 1 (Vaswani et al. 2017, section 3.2.1). ``scale=1.0`` shows the statistics
    without scaling.

    Raises:
      ValueError: shapes do not match.

    >>> import jax.numpy as jnp
    >>> query, key = jnp.ones((1, 1, 1, 1)), jnp.array([20.0, 10.0]).reshape(1, 2, 1, 1)
    >>> print([round(float(x.item()), 5) for x in attention_statistics(query, key)])
    [0.0005, 0.99995, 5e-05, 25.0]
    """
    request = make_request(query, key, key, **arguments)

    def statistics(rows: Array, weights: Array) -> AttentionStatistics:
        slope = (weights * (1 - weights)).max(-1, initial=0.0)
        return AttentionStatistics(
            _entropy(request, weights), weights.max(-1, initial=0.0), slope, _logit_variance(request, rows)
        )

    return _by_rows(request, statistics)


def top_alignments(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    count: int,
    **arguments: Unpack[WeightOptions],
) -> tuple[Float[Array, "B N T count"], Int[Array, "B N T count"]]:
    """Returns the `count` largest weights of each query, largest first, and the indices of their keys.

    Memory is O(S). The other arguments are the same as for `attention`; a sink is not among
    the keys, but lowers their weights.

    Raises:
      ValueError: `count` is not between 1 and the number of keys, or shapes do not match.

    >>> import jax.numpy as jnp
    >>> query, key = jnp.ones((1, 1, 1, 1)), jnp.array([0., 2., 1.]).reshape(1, 3, 1, 1)
    >>> weights, keys = top_alignments(query, key, 2)
    >>> keys.tolist()
    [[[[1, 2]]]]
    """
    if not 1 <= count <= key.shape[1]:
        raise ValueError(f"count must be between 1 and {key.shape[1]} keys, got {count}")
    request = make_request(query, key, key, **arguments)
    values, keys = _by_rows(request, lambda rows, weights: jax.lax.top_k(weights, count))
    return values, keys


def _weights(request: Request, rows: Array, heads: np.ndarray) -> Array:
    """Returns weights ``[B, heads, rows, S]``."""
    num_keys = request.key.shape[1]
    pick = lambda x: take(x, heads, 1)
    mask = bias = allowed = None
    if request.mask is not None:
        allowed = request.mask.tile(rows, jnp.arange(num_keys))
        mask = pick(allowed)
        mask = dense(jnp.broadcast_to(mask, (*mask.shape[:2], rows.shape[0], num_keys)))
    if request.bias is not None:
        bias = pick(dense_bias(request.bias, request.query, num_keys, request.scale, rows, allowed))
    key = request.key[:, :, heads // request.group]
    query = request.query[:, rows][:, :, heads]
    sinks = jax.tree.map(lambda x: x[heads], request.sinks)
    return reference.attention_weights(Request(query, key, key, mask, bias, request.scale, request.score, None, sinks))


def _entropy(request: Request, weights: Array) -> Array:
    """Returns the entropy ``[B, N, rows]`` of weights, including the sink, which has the rest of the weight."""
    if request.sinks is None:
        return weights_entropy(weights)
    return weights_entropy(jnp.concatenate([weights, 1 - weights.sum(-1, keepdims=True)], -1))


def _logit_variance(request: Request, rows: Array) -> Array:
    """Returns the variance ``[B, N, rows]`` of the scaled dot products over the keys that the mask allows."""
    batch, num_keys, num_kv_heads, head_dim = request.key.shape
    query = request.query[:, rows].reshape(batch, rows.shape[0], num_kv_heads, request.group, head_dim)
    logits = jnp.einsum("btkgh,bskh->bkgts", query, request.key, preferred_element_type=jnp.float32) * request.scale
    logits = logits.reshape(batch, num_kv_heads * request.group, rows.shape[0], num_keys)
    allowed = jnp.ones((1, 1, 1, 1), bool)
    if request.mask is not None:
        allowed = request.mask.tile(rows, jnp.arange(num_keys))
    allowed = jnp.broadcast_to(allowed, logits.shape)
    count = jnp.maximum(allowed.sum(-1), 1).astype(jnp.float32)
    mean = jnp.where(allowed, logits, 0.0).sum(-1) / count
    return jnp.where(allowed, jnp.square(logits - mean[..., None]), 0.0).sum(-1) / count


def _by_rows(request: Request, function: Callable[[Array, Array], ResultT]) -> ResultT:
    """Applies ``function(rows, weights)`` to a block of rows at a time; returns arrays ``[B, N, T, ...]``."""
    length = request.query.shape[1]
    blocks = max(1, -(-length // ROWS)) if isinstance(length, int) else 1  # the blocks of a symbolic length are unknown
    size = -(-length // blocks)
    heads = np.arange(request.query.shape[2])
    rows = jnp.minimum(jnp.arange(blocks * size), length - 1).reshape(blocks, size)
    results = jax.lax.map(lambda block: function(block, _weights(request, block, heads)), rows)

    def join(x: Array) -> Array:  # [blocks, B, N, size, ...]
        moved = jnp.moveaxis(x, 0, 2)
        return moved.reshape(*moved.shape[:2], blocks * size, *moved.shape[4:])[:, :, :length]

    return jax.tree.map(join, results)


def indices(name: str, chosen: Sequence[int] | None, count: int) -> np.ndarray:
    """Returns the chosen indices, all by default."""
    index = np.arange(count) if chosen is None else np.asarray(chosen)
    if index.size and not np.issubdtype(index.dtype, np.integer):
        raise ValueError(f"{name} must be integers, got {chosen}")
    index = index.astype(int)
    if index.ndim != 1 or ((index < 0) | (index >= count)).any():
        raise ValueError(f"{name} must be indices from 0 to {count - 1}, got {chosen}")
    return index
