"""The chosen attention implementation, the numerical errors of those that accept, and why others refuse."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional.attention.api import choose, implementations
from jaxformer.functional.attention.base import Request, keep_tile, make_request
from jaxformer.functional.bias import dense_bias

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
        indices = tuple(jnp.asarray(x) for x in np.ix_(*(np.arange(n) for n in weights.shape)))
        weights = weights * np.asarray(keep_tile(request.dropout, weights.shape, indices)) / (1 - request.dropout.rate)
    return np.einsum("bnts,bsnj->btnj", weights, value)
