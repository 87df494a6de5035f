"""The public attention function: it checks the request, then chooses an implementation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxformer import targets
from jaxformer.functional.attention import blockwise, reference
from jaxformer.functional.attention.base import Request, ScoreFunction, make_request, once, refuse_traced
from jaxformer.functional.attention.vendor import jax_nn, splash
from jaxformer.functional.bias import Bias, dense_bias
from jaxformer.functional.dropout import Dropout, every_index, keep
from jaxformer.masks import Mask


def refuse_blockwise(request: Request) -> str | None:
    """Returns the reason why a request cannot be computed in blocks, or None if it can."""
    if not _has_known_shape(request):
        return "its loops need shapes that are numbers, not symbolic; reference and xla take any shape"
    if reason := refuse_traced(request.score):
        return reason
    specs = [jax.typeof(x).sharding.spec for x in (request.query, request.key, request.value)]
    if not any(part is not None for spec in specs for part in spec):
        return None
    return (
        "its loops need arrays that are not sharded over Explicit axes, the default of jax.make_mesh; make the mesh "
        "with axis_types=(jax.sharding.AxisType.Auto,) * n, or call it in jax.shard_map"
    )


def _has_known_shape(request: Request) -> bool:
    return all(isinstance(size, int) for x in (request.query, request.key, request.value) for size in x.shape)


class Implementation(NamedTuple):
    """One way to compute attention."""

    run: Callable[[Request], Array]
    refuse: Callable[[Request], str | None]
    """Returns the reason why a request cannot be computed on the target devices, or None if it can."""
    second: bool = False
    """True if its gradient has derivatives, at least in forward mode."""
    decline: Callable[[Request], str | None] = lambda request: None
    """Returns the reason why it is a bad default for a request that it can compute, or None if it is a good one."""


implementations: dict[str, Implementation] = {
    "reference": Implementation(reference.attention, lambda request: None, second=True),
    "blockwise": Implementation(blockwise.attention, refuse_blockwise, second=True),
    "xla": Implementation(functools.partial(jax_nn.attention, implementation="xla"), jax_nn.refuse_xla, second=True),
    "cudnn": Implementation(
        functools.partial(jax_nn.attention, implementation="cudnn"), jax_nn.refuse_cudnn, decline=jax_nn.decline_cudnn
    ),
    "splash": Implementation(splash.attention, splash.refuse, decline=splash.decline),
    "tokamax": Implementation(jax_nn.tokamax_attention, jax_nn.refuse_tokamax),
}


def attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K J"],
    *,
    mask: Mask | Bool[Array, ...] | None = None,
    bias: Float[Array, ...] | Bias | None = None,
    scale: float | Float[Array, ""] | None = None,
    score: ScoreFunction | None = None,
    dropout: Dropout | None = None,
    sinks: Float[Array, " N"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B T N J"]:
    r"""Computes multi-head scaled dot-product attention.

    .. math:: \mathrm{softmax}(QK^\top/\sqrt H + \mathrm{bias})V \quad \text{for each head}

    `attention_head` is the definition; this call lifts it over heads and batch. Query t and key s are at positions t
    and s; `at_positions` computes mask and bias at other ones. With fewer key heads than query heads (N a multiple of
    K), consecutive query heads share a key head: grouped-query attention (Ainslie et al. 2023), or multi-query
    attention at K = 1 (Shazeer 2019).

    Args:
      mask: the keys that each query may attend to: a `Mask`, or a Boolean array (True = attend) for `masks.dense`.
      bias: a term added to the scaled logits: an array that broadcasts to [B, N, T, S], such as [T, S] for all heads or
        [N, T, S] for each; or a `Bias` such as `alibi`, `t5_bias` or `relative_keys`, which needs no such array. The
        sum of a `Bias` and an array is a `Bias`.
      scale: the factor of the logits, ``H ** -0.5`` by default; a learned or traced scale multiplies the queries.
      score: an elementwise function of the scaled logits, applied before bias and mask, such as `soft_cap`; hashable.
        With one that reads traced arrays, such as learned ones, only "reference" can be used.
      dropout: rate and key for dropping attention weights.
      sinks: a logit for each head, an extra term in the denominator of its softmax, which takes weight away from the
        keys (OpenAI 2025, gpt-oss). Scale, score and bias do not apply to it, and it is never dropped.
      implementation: "reference", "blockwise", "xla" (from `jax.nn`), "cudnn", "splash" (on TPU), "tokamax" (if it
        is installed), or None to choose; see `explain_attention`.

    Raises:
      ValueError: shapes do not match (the message has the actual and expected values), the implementation is unknown,
        or it cannot compute this request (the message has the reason) or its second derivative.
      TypeError: the mask or the dropout is of another type, the dropout has a rate without a key, or the implementation
        is differentiated in forward mode (``jax.jvp``), which only "reference" and "xla" allow.

    >>> import jax.numpy as jnp
    >>> from jaxformer import masks
    >>> query, key = jnp.zeros((1, 2, 4, 8)), jnp.zeros((1, 2, 1, 8))  # four heads share a key
    >>> value = jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    >>> attention(query, key, value, mask=masks.causal())[0, :, 0].tolist()  # equal keys: the mean so far
    [[1.0], [2.0]]
    """
    request = make_request(
        query, key, value, mask=mask, bias=bias, scale=scale, score=score, dropout=dropout, sinks=sinks
    )
    name = choose(request) if implementation is None else implementation
    if name not in implementations:
        raise ValueError(f"implementation must be one of {sorted(implementations)}, got {name!r}")
    check(request, name)
    return implementations[name].run(differentiable(request, name))


def check(request: Request, name: str) -> None:
    """Checks that an implementation can compute a request on the target devices."""
    if reason := implementations[name].refuse(request):
        raise ValueError(f"attention implementation {name!r} cannot do this: {reason}")


def differentiable(request: Request, name: str) -> Request:
    """Returns the request with guards that reject the derivatives that implementation `name` lacks."""
    if implementations[name].second:
        return request
    names = "query", "key", "value", "bias", "sinks"
    reason = f"{name} attention has a gradient but no other derivative; implementation='reference' has all"
    guarded = once(tuple(getattr(request, field) for field in names), reason)
    return dataclasses.replace(request, **dict(zip(names, guarded, strict=True)))


LONG = 1 << 21
"""The smallest T * S for which an accelerator uses "blockwise" by default, if no vendor's kernel can be used.

On an H200 (see `tiles.block_size`), "blockwise" takes 0.78 times as long as "reference" at 2,048 by 2,048 causal
positions and 0.64 times at 8,192, with the gradient; forward, 1.17 and 0.93 times.
"""

LONG_ON_CPU = 1 << 16
"""The same threshold for a CPU, where blocks that fit in cache are faster from about 256 by 256 positions.

Measured on two cores, relative to the time of "reference", forward and with the gradient: 0.3 to 1.4 and 0.7 to 1.3 at
128 by 128 positions, 0.4 to 0.6 and 0.4 to 1.0 at 256, 0.2 to 0.7 and 0.3 to 0.8 at 384, 0.3 to 0.6 and 0.3 to 1.1 from
512 to 1,024. The measurements cover 8 x 8, 32 x 4 and 64 x 8 sequences x heads of 64, without a mask, causal, padded,
and with a quarter as many queries as keys.
"""


def choose(request: Request) -> str:
    """Returns the default implementation: cuDNN or splash if one accepts the request and suits it, else by length.

    Symbolic dimensions, in a program exported for many shapes, get "reference", which handles every shape; so does a
    graph whose products are counted (see `planning.flops`), because it has no loops and no kernels.
    """
    if not _has_known_shape(request) or targets.devices()[0].platform == "counted":
        return "reference"
    for name in ("cudnn", "splash"):
        if implementations[name].refuse(request) is None and implementations[name].decline(request) is None:
            return name
    long = LONG_ON_CPU if targets.devices()[0].platform == "cpu" else LONG
    in_blocks = request.query.shape[1] * request.key.shape[1] >= long and refuse_blockwise(request) is None
    return "blockwise" if in_blocks else "reference"


Shaped = jax.Array | jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The result of `explain_attention`; it prints as a table.

    >>> print(Explanation("blockwise", {"xla": "it takes no function of the logits"}, {"blockwise": 1e-7}))
    -> blockwise    worst error 1.0e-07
       xla          refuses: it takes no function of the logits
    """

    chosen: str
    refused: dict[str, str]
    """The reason of each implementation that refuses the request."""
    errors: dict[str, float | None]
    """The largest difference from float64 for each implementation that accepts; None if only shapes were given."""
    declined: dict[str, str] = dataclasses.field(default_factory=dict)
    """The reason of each implementation that accepts but is not the default here, though it is for other requests."""

    def __str__(self) -> str:
        lines = []
        for name, error in self.errors.items():
            parts = [] if error is None else [f"worst error {error:.1e}"]
            if name in self.declined:
                parts.append(f"no default: {self.declined[name]}")
            lines.append((name, "; ".join(parts)))
        lines += [(name, f"refuses: {reason}") for name, reason in self.refused.items()]
        return "\n".join(f"{'->' if name == self.chosen else '  '} {name:12} {text}".rstrip() for name, text in lines)


def explain_attention(query: Shaped, key: Shaped, value: Shaped, **arguments: object) -> Explanation:
    """Returns the implementation that `attention` would choose, why not another one, and the largest errors.

    Every implementation that accepts the arrays is run and compared with the definition in float64. With
    ``jax.ShapeDtypeStruct`` instead of arrays, none is run.

    Args:
      arguments: the arguments of `attention` other than `implementation`.

    Raises:
      ValueError: shapes do not match, as in `attention`.

    >>> import jax, jax.numpy as jnp
    >>> x = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)
    >>> explain_attention(x, x, x, score=jnp.tanh).chosen
    'blockwise'
    """
    request = make_request(query, key, value, **arguments)
    reasons = {name: implementation.refuse(request) for name, implementation in implementations.items()}
    accepted = [name for name, reason in reasons.items() if reason is None]
    errors: dict[str, float | None] = dict.fromkeys(accepted)
    if not any(isinstance(x, jax.ShapeDtypeStruct) for x in (query, key, value)):
        exact = _exact(request)
        for name in accepted:
            output = np.asarray(implementations[name].run(request), np.float64)
            errors[name] = float(np.abs(output - exact).max(initial=0.0))
    declined = {name: reason for name in accepted if (reason := implementations[name].decline(request))}
    return Explanation(choose(request), {name: reason for name, reason in reasons.items() if reason}, errors, declined)


def _exact(request: Request) -> np.ndarray:
    """Computes the definition in float64, all pairs at once."""
    num_queries, num_keys = request.query.shape[1], request.key.shape[1]
    query, key, value = (np.asarray(x, np.float64) for x in (request.query, request.key, request.value))
    key, value = (np.repeat(x, request.group, axis=2) for x in (key, value))
    allowed = np.ones((1, 1, num_queries, num_keys), bool)
    if request.mask is not None:  # empty queries and unseen keys may hold NaN, and 0 times NaN is NaN
        allowed = np.asarray(request.mask.dense(num_queries, num_keys))
        empty, unseen = (~np.moveaxis(allowed.any(dim), 1, 2)[..., None] for dim in (3, 2))
        query, key, value = np.where(empty, 0, query), np.where(unseen, 0, key), np.where(unseen, 0, value)
    logits = np.einsum("btnh,bsnh->bnts", query, key) * request.scale
    if request.score is not None:
        logits = np.asarray(request.score(jnp.asarray(logits, jnp.float32)), np.float64)
    if request.bias is not None:
        logits = logits + np.asarray(dense_bias(request.bias, request.query, num_keys, request.scale), np.float64)
    logits = np.where(allowed, logits, -np.inf)
    top = logits.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    if request.sinks is not None:
        total = total + np.exp(np.asarray(request.sinks, np.float64)[:, None, None] - top)
    weights = weights / np.where(total == 0, 1, total)
    if request.dropout is not None:
        kept = np.asarray(keep(request.dropout.key, request.dropout.rate, every_index(weights.shape)))
        weights = weights * kept / (1 - request.dropout.rate)
    return np.einsum("bnts,bsnj->btnj", weights, value)
