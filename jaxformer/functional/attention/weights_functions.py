"""The association of each attention function with the function that computes its weights."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxtyping import Array

from jaxformer.functional.attention import api
from jaxformer.functional.attention.weights import attention_weights, indices

F = TypeVar("F", bound=Callable[..., Any])

WeightsFunction = Callable[..., Array]
"""A function with the signature of `attention_weights`, which returns the weights ``[B, N, T, S]`` of an attention
function from the same queries, keys and options. It need not take `rows` and `heads`."""


def with_weights(weights: WeightsFunction) -> Callable[[F], F]:
    """Returns a decorator that declares how the weights of an attention function are computed, for inspection.

    Attention functions return no weights. Attention maps are computed from captured queries and keys, for `attention`
    by `attention_weights`; a model with a custom attention function has no maps unless the function is decorated. Use
    ``with_weights(attention_weights)`` if its weights are the usual softmax of its arguments; the weights of a function
    that changes the mask, for example, need a function that changes it too. An attention function with parameters is a
    module: decorate its method ``__call__`` with another method.

    Args:
      weights: returns the weights ``[B, N, T, S]`` before dropout. It gets the options of the attention function that
        determine weights (`mask`, and `bias`, `scale`, `score` and positions where a model has them), and `rows` and
        `heads`, as in `attention_weights`, if it takes both.

    >>> import jax, jax.numpy as jnp
    >>> def uniform_weights(query, key, *, mask=None):
    ...     return jnp.full((query.shape[0], query.shape[2], query.shape[1], key.shape[1]), 1 / key.shape[1])
    >>> @with_weights(uniform_weights)
    ... def uniform(query, key, value, *, mask=None, dropout=None):
    ...     return jnp.broadcast_to(value.mean(1, keepdims=True), query.shape)
    >>> x = jnp.ones((1, 2, 4, 8))
    >>> weights_function(uniform)(x, x, rows=[1], heads=[0]).tolist()
    [[[[0.5, 0.5]]]]
    """

    def bring(attention: F) -> F:
        @functools.wraps(attention)
        def weighted(*arrays: Any, **options: Any) -> Any:
            return attention(*arrays, **options)

        # `functools.wraps` copies attributes, so another function may have these without being their owner.
        weighted.weights, weighted.weights_owner = _selecting(weights), weighted  # type: ignore[attr-defined]
        return weighted  # type: ignore[return-value]

    return bring


def weights_function(attention: Callable[..., Any]) -> WeightsFunction:
    """Returns the function that computes the weights of an attention function: see `with_weights`.

    For a ``functools.partial``, its options are passed to the weights function too.

    Raises:
      ValueError: it is neither `attention`, nor sharded or ring attention, nor a function `with_weights`.

    >>> weights_function(api.attention) is attention_weights
    True
    """
    if (found := _found(attention)) is None:
        name = getattr(attention, "__qualname__", type(attention).__name__)
        raise ValueError(
            f"the attention function {name} does not declare its weights: "
            "decorate it with functional.with_weights(f), where f(query, key, *, mask=None) returns them, [B, N, T, S];"
            " use f=functional.attention_weights if they are the usual softmax of its arguments"
        )
    return found


def has_weights(attention: Callable[..., Any]) -> bool:
    """Returns True if `weights_function` has a result for this attention function."""
    return _found(attention) is not None


def _found(attention: Callable[..., Any]) -> WeightsFunction | None:
    if attention is api.attention:
        return attention_weights
    if isinstance(attention, functools.partial):
        inner = _found(attention.func)
        if inner is None or attention.args:
            return None
        without_effect = {"mask", "dropout"}  # a layer overrides the mask, and weights are taken before dropout
        if inner is attention_weights or getattr(inner, "func", None) is attention_weights:
            without_effect.add("implementation")
        options = {name: x for name, x in attention.keywords.items() if name not in without_effect}
        return functools.partial(inner, **options) if options else inner
    if getattr(attention, "weights_owner", None) is attention:
        return attention.weights  # type: ignore[attr-defined]
    call: Any = type(attention).__call__  # the method of a module, whose parameters the weights depend on
    return functools.partial(call.weights, attention) if getattr(call, "weights_owner", None) is call else None


def _selecting(weights: WeightsFunction) -> WeightsFunction:
    """Returns a weights function that takes `rows` and `heads`, and checks the shape of its weights."""
    if {"rows", "heads"} <= inspect.signature(weights).parameters.keys():
        return weights

    @functools.wraps(weights)
    def selecting(
        *arrays: Any,  # query and key, after the module in a method
        rows: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> Array:
        query, key = [*arrays, *(options[name] for name in ("query", "key") if name in options)][-2:]
        found = weights(*arrays, **options)
        expected = query.shape[0], query.shape[2], query.shape[1], key.shape[1]
        if found.shape != expected:
            name = getattr(weights, "__name__", weights)
            raise ValueError(f"{name} must return weights [B, N, T, S] = {list(expected)}, got {list(found.shape)}")
        found = found if heads is None else found[:, indices("heads", heads, expected[1])]
        return found if rows is None else found[:, :, indices("rows", rows, expected[2])]

    return selecting
