"""The parts that all attention implementations share: the request, its checks, and the masked softmax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jaxformer.functional.bias import Bias, DenseBias, dense_bias, terms, with_four_dims
from jaxformer.functional.dropout import Dropout
from jaxformer.masks import Mask, as_mask
from jaxformer.masks.algebra import signed

T = TypeVar("T")

ScoreFunction = Callable[[jax.Array], jax.Array]
"""An elementwise function of the scaled logits, applied before bias and mask, such as `soft_cap`."""


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
      ValueError: the cap is not above 0 and finite.

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(soft_cap(50.0)(jnp.array([-1e4, 1.0, 1e4]))).round(2))
    [-50.   1.  50.]
    """
    if not 0 < cap < np.inf:
        raise ValueError(f"cap must be above 0 and finite, got {cap}")
    return SoftCap(cap)


def refuse_traced(score: ScoreFunction | None) -> str | None:
    """Returns the reason why a score has no gradient of its own in blocks: it reads traced arrays; or None.

    >>> jax.jit(lambda cap: refuse_traced(lambda x: cap * jnp.tanh(x / cap)) is None)(2.0).item()
    False
    """
    if score is None or isinstance(score, SoftCap):
        return None
    constants = jax.make_jaxpr(score)(jax.ShapeDtypeStruct((1, 1, 1, 1), jnp.float32)).consts
    if not any(isinstance(x, jax.core.Tracer) for x in constants):
        return None
    return "its score reads traced arrays, whose gradient it does not compute; reference does"


RESIDUAL = "attention_residual"
"""The name (`jax.ad_checkpoint.checkpoint_name`) of what the backward pass of fused attention reads besides its inputs:
with a policy of `jax.checkpoint` that saves it, attention is not recomputed."""


LOW = float(np.finfo(np.float32).min)
"""The logit of a masked pair: finite, because the difference of two infinities is NaN, forward and backward."""


def is_nonempty(logsumexp: Array) -> Array:
    """Returns True where a log-sum-exp is from a query that sees a key; for other queries it is `LOW`."""
    return logsumexp > 0.5 * LOW


@dataclasses.dataclass(frozen=True)
class Request:
    """A checked call of attention. `group` query heads share each key head: ``N = K * group``."""

    query: Any  # [B, T, N, H]; query, key, value: Arrays, or ShapeDtypeStructs if only shapes matter
    key: Any  # [B, S, K, H]
    value: Any  # [B, S, K, J]
    mask: Mask | None
    bias: Array | Bias | None
    scale: float
    score: ScoreFunction | None
    dropout: Dropout | None
    sinks: Array | None = None  # [N]

    @property
    def group(self) -> int:
        return self.query.shape[2] // self.key.shape[2]

    @property
    def rate(self) -> float:
        """The rate of dropout: 0 without."""
        return 0.0 if self.dropout is None else self.dropout.rate

    @property
    def dropout_key(self) -> Array | None:
        return None if self.dropout is None else self.dropout.key


def make_request(
    query, key, value, *, mask=None, bias=None, scale=None, score=None, dropout=None, sinks=None
) -> Request:
    """Returns a request after checking its shapes once, at trace time, for every implementation."""
    _check_shapes(query, key, value)
    if dropout is not None and not (isinstance(dropout, Dropout) and isinstance(dropout.key, jax.Array | np.ndarray)):
        raise TypeError(f"dropout must be a functional.Dropout(rate, key), got {dropout!r}")
    batch, num_queries, num_heads, head_dim = query.shape
    if mask is not None:
        mask = as_mask(mask)
        covered = jax.eval_shape(lambda m: m.dense(num_queries, key.shape[1]), mask).shape
        _check_covers("mask", covered, (batch, num_heads, num_queries, key.shape[1]))
    if bias is not None:
        if not isinstance(bias, Bias):
            bias = with_four_dims(bias)
        for covered in _shapes_of_bias(bias, query, key.shape[1]):
            _check_covers("bias", covered, (batch, num_heads, num_queries, key.shape[1]))
    if sinks is not None and sinks.shape != (num_heads,):
        raise ValueError(f"sinks must have shape [N] = {[num_heads]}, one for each head, got {list(sinks.shape)}")
    if sinks is not None:  # an infinite logit would give NaN; the largest number gives the same weights
        sinks = jnp.minimum(sinks, jnp.finfo(sinks.dtype).max)
    if dropout is not None and not 0 <= dropout.rate < 1:
        raise ValueError(f"dropout rate must be in [0, 1), got {dropout.rate}")
    if dropout is not None and dropout.rate == 0:
        dropout = None
    if scale is not None and np.ndim(scale) != 0:
        raise ValueError(f"scale must be one number, got shape {list(np.shape(scale))}")
    if isinstance(scale, jax.core.Tracer):  # its value is unknown, and implementations need a static scale
        compute_dtype = np.promote_types(query.dtype, np.float32)
        query, scale = _multiplied(query.astype(compute_dtype), scale.astype(compute_dtype)).astype(query.dtype), 1.0
    scale = head_dim**-0.5 if scale is None else float(scale)
    return Request(query, key, value, mask, bias, scale, score, dropout, sinks)


def at_positions(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    query_positions: Int[ArrayLike, "... T"] | None = None,
    key_positions: Int[ArrayLike, "... S"] | None = None,
    mask: Mask | Bool[Array, ...] | None = None,
    bias: Array | Bias | None = None,
    scale: float | Float[Array, ""] | None = None,
) -> tuple[Mask | None, Array | Bias | None]:
    """Returns a mask and a bias for `attention` of queries and keys at these absolute positions.

    `attention` itself takes query t and key s to be at positions t and s. A layer whose tokens are elsewhere, such as
    the one late query of a decoding step, calls this first. A mask that reads no positions and a bias that is an array
    come back as the same objects; others become ``[T, S]`` arrays.

    Args:
      query_positions, key_positions: ``[T]`` or ``[B, T]``, and ``[S]`` or ``[B, S]``; 0, 1, 2, ... by default.
      mask, bias, scale: as in `attention`; the scale multiplies the queries that a `Bias` reads.

    Raises:
      ValueError: positions are not integers, or their shape does not match.

    >>> from jaxformer import masks
    >>> query, keys = jnp.ones((1, 1, 1, 4)), jnp.ones((1, 5, 1, 4))
    >>> mask, _ = at_positions(query, keys, query_positions=jnp.array([2]), mask=masks.causal())
    >>> mask.dense(1, 5)[0, 0].astype(int).tolist()
    [[1, 1, 1, 0, 0]]
    """
    if mask is not None:
        mask = as_mask(mask)
    if query_positions is None and key_positions is None:
        return mask, bias
    queries, keys = _positions("query", query_positions, query), _positions("key", key_positions, key)
    if mask is not None:
        mask = mask.at_positions(queries, keys)
    if isinstance(bias, Bias):
        scaled = _scaled(query, key.shape[1], scale, mask)
        bias = bias.at_positions(scaled, jnp.asarray(queries), keys)
    return mask, bias


def row_of_positions(length: Any) -> Array | np.ndarray:
    """Returns the positions 0, 1, 2, ..., ``int [1, length]``, in NumPy, so that they are known at trace time.

    A symbolic length (``jax.export.symbolic_shape``) gives a JAX array.
    """
    return np.arange(length)[None] if isinstance(length, int) else jnp.arange(length)[None]


def _positions(name: str, positions, x) -> Array | np.ndarray:
    """Returns positions ``int [1 or B, length]``; 0, 1, 2, ... by default."""
    if positions is None:
        return row_of_positions(x.shape[1])
    if not isinstance(positions, np.ndarray):
        positions = jnp.asarray(positions)
    if positions.ndim == 1:
        positions = positions[None]
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        raise ValueError(f"{name}_positions must be integers, got {positions.dtype}")
    if positions.ndim != 2 or positions.shape[0] not in (1, x.shape[0]) or positions.shape[1] != x.shape[1]:
        expected = f"[{x.shape[1]}] or [{x.shape[0]}, {x.shape[1]}]"
        raise ValueError(f"{name}_positions must have shape {expected}, got {list(positions.shape)}")
    return signed(positions)


def _scaled(query, num_keys: int, scale, mask: Mask | None) -> Array:
    """Returns scaled queries ``[B, N, T, H]`` for the tiles of a bias; 0 for queries that may attend to no key."""
    if scale is None:
        scale = query.shape[3] ** -0.5
    scaled = _multiplied(query.transpose(0, 2, 1, 3).astype(jnp.float32), jnp.asarray(scale, jnp.float32))
    if mask is None or num_keys == 0:
        return scaled
    return jnp.where(mask.dense(query.shape[1], num_keys).any(3)[..., None], scaled, 0)


@jax.custom_jvp
def _multiplied(query: Array, scale: Array) -> Array:
    return query * scale


@_multiplied.defjvp
def _multiplied_jvp(primals, tangents):
    """Keeps the gradient of the scale finite: a query without keys may hold NaN, and 0 times NaN is NaN."""
    query, scale = primals
    finite = jnp.where(jnp.isfinite(query), query, 0)
    return _multiplied(query, scale), tangents[0] * scale + finite * tangents[1]


def once(tree: T, reason: str) -> T:
    """Returns a pytree unchanged; its arrays have a gradient, and every other derivative raises an error.

    Raises:
      TypeError: when differentiated in forward mode, by JAX, as every function with its own backward pass.
      ValueError: when the gradient is differentiated; the message is `reason`.

    >>> square = lambda x: once(x, "use another function") ** 2
    >>> jax.grad(square)(3.0).item()
    6.0
    """

    @jax.custom_jvp
    def never(tree: T) -> T:
        return tree

    @never.defjvp
    def _(primals, tangents):
        raise ValueError(reason)

    guarded = jax.custom_vjp(lambda tree: tree)
    guarded.defvjp(lambda tree: (never(tree), None), lambda _, upstream: (upstream,))
    return guarded(tree)


def _check_shapes(query, key, value) -> None:
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim != 4:
            raise ValueError(f"{name} must be [batch, length, heads, dim], got shape {list(array.shape)}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name} must be floating-point, got {array.dtype}")
    batch, _, num_heads, head_dim = query.shape
    sizes = {"query heads": num_heads, "key heads": key.shape[2], "head dim": head_dim, "value dim": value.shape[3]}
    for name, size in sizes.items():
        if size == 0:
            raise ValueError(f"the number of heads and the dims must be at least 1, got {name} 0")
    if key.shape[0] != batch or value.shape[0] != batch:
        raise ValueError(f"batch sizes must be equal, got query {batch}, key {key.shape[0]} and value {value.shape[0]}")
    if key.shape[3] != head_dim:
        raise ValueError(f"query and key head dims must be equal, got {head_dim} and {key.shape[3]}")
    if key.shape[1:3] != value.shape[1:3]:
        raise ValueError(f"key and value must agree in [length, heads], got {key.shape[1:3]} and {value.shape[1:3]}")
    if num_heads % key.shape[2]:
        raise ValueError(f"query heads must be a multiple of key heads, got {num_heads} and {key.shape[2]}")


def _shapes_of_bias(bias: Array | Bias, query, num_keys: int) -> Iterator[tuple[int, ...]]:
    """Yields the shapes of a bias and of the arrays that it adds, which the shape of a tile would not reveal."""
    if not isinstance(bias, Bias):
        yield bias.shape
        return
    yield from (x.array.shape for x in terms(bias) if isinstance(x, DenseBias))
    yield jax.eval_shape(lambda b, q: dense_bias(b, q, num_keys, 1.0), bias, query).shape


def _check_covers(name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if len(got) != 4 or any(g not in (1, e) for g, e in zip(got, expected, strict=True)):
        raise ValueError(f"{name} must broadcast to [B, N, T, S] = {list(expected)}, got shape {list(got)}")


def masked_softmax(logits: Float[Array, "*rows S"], mask: Bool[Array, "*rows S"] | None) -> Float[Array, "*rows S"]:
    """Returns the softmax over the keys that the mask allows: exactly 0 elsewhere, and 0 throughout an empty row.

    >>> masked_softmax(jnp.zeros((2, 3)), jnp.array([[True, True, False], [False, False, False]])).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    return _softmax(logits, mask)


@jax.custom_jvp
def _softmax(logits: Array, mask: Array | None) -> Array:
    if mask is not None:
        logits = jnp.where(mask, logits, LOW)
    top = jax.lax.stop_gradient(logits.max(-1, keepdims=True, initial=LOW))
    weights = jnp.exp(logits - top)
    if mask is not None:
        weights = jnp.where(mask, weights, 0.0)
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1.0, total)


@_softmax.defjvp
def _softmax_jvp(primals, tangents):
    """Saves only the weights; by default the backward pass would also need the logits and the exponentials."""
    weights, tangent, mask = _softmax(*primals), tangents[0], primals[1]
    if mask is not None:
        tangent = jnp.where(mask, tangent, 0.0)
    return weights, weights * (tangent - (weights * tangent).sum(-1, keepdims=True))


def add_sinks(
    output: Float[Array, "B T N J"], logsumexp: Float[Array, "B T N 2"], sinks: Float[Array, " N"] | None
) -> tuple[Float[Array, "B T N J"], Float[Array, "B T N 2"]]:
    """Returns the output and the log-sum-exp of `blockwise.forward` with sinks; empty rows are unchanged.

    A sink is a learned logit of each head, an extra term in the denominator of its softmax: a head with nothing to
    attend to gives its weight to the sink (Xiao et al. 2023; OpenAI 2025, gpt-oss). It needs no key, so restricted
    attention visits no additional block.
    """
    if sinks is None:
        return output, logsumexp
    m, log_l = logsumexp[..., 0], logsumexp[..., 1]
    more = jnp.where(is_nonempty(log_l), jax.nn.softplus(sinks.astype(jnp.float32)[None, None] - m - log_l), 0.0)
    return output * jnp.exp(-more)[..., None], jnp.stack([m, log_l + more], -1)


def sink_gradients(
    sinks: Float[Array, " N"] | None,
    output: Float[Array, "B T N J"],
    logsumexp: Float[Array, "B T N 2"],
    upstream: Float[Array, "B T N J"],
) -> Float[Array, " N"] | None:
    """Returns the gradients of sinks, given the results of `add_sinks` and the gradient of the output."""
    if sinks is None:
        return None
    m, log_l = logsumexp[..., 0], logsumexp[..., 1]
    exponent = sinks.astype(jnp.float32)[None, None] - m - log_l
    weight = jnp.exp(jnp.where(is_nonempty(log_l), exponent, LOW))  # an infinite one of an empty row times 0 is NaN
    delta = (upstream.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1)
    # An empty row, and the gradient of its output, may hold NaN.
    return -jnp.where(is_nonempty(log_l), weight * delta, 0.0).sum((0, 1)).astype(sinks.dtype)
