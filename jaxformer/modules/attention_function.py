"""The interface between attention layers and attention functions: what a function is called with, and may be."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import TypeVar

import numpy as np
from flax import nnx
from jaxtyping import Array

ResultT = TypeVar("ResultT")

AttentionFunction = Callable[..., Array]
"""Any function ``(query, key, value, *, mask, bias, scale, score, sinks, dropout) -> [B, T, N, H]``.

These are the arguments of `functional.attention`. A function takes the ones that its model needs: a layer passes a mask
(a `Mask`, a Boolean array or None; ``masks.as_mask(mask).dense(T, S)`` is the array), and a bias, a scale, a score,
sinks or a dropout only if it has them; one that the function lacks is refused. Positions never reach it: a layer
resolves those of masks and biases first, so that a cached step, which computes one late row, needs nothing else. What
depends on positions is a `Mask`, a `Bias` or a `PositionScheme`.

A function with parameters is an ``nnx.Module`` with this ``__call__``. Each block trains its own copy of them, which
starts from the values of the module given; its self-attention and its cross-attention share the copy. With
`modules.per_layer`, each attention of each layer makes its own.
"""


def check_partial(attention: AttentionFunction, settings: Collection[str] = ()) -> None:
    """Checks that an attention function is no partial with arguments of a layer and no wrapper or method of a module.

    Args:
      settings: the arguments that this layer passes because of its own settings, such as a scale.

    Raises:
      ValueError: a ``functools.partial`` binds an argument that the layer passes itself.
      TypeError: `attention` is not a function but, for example, the name of an implementation or a class; or it is a
        wrapper or method of a module, whose parameters would not be trained.
    """
    if isinstance(attention, type):
        name = attention.__name__
        raise TypeError(f"attention must be a function or an instance of a module, got the class {name}; call {name}")
    if not callable(attention):
        raise TypeError(
            "attention must be a function, such as functools.partial(functional.attention, "
            f"implementation='blockwise'), got {attention!r}"
        )
    if (module := _wrapped_module(attention)) is not None:
        raise TypeError(
            f"this attention function wraps the module {type(module).__name__}, whose parameters would not be trained; "
            "pass the module itself"
        )
    while isinstance(attention, functools.partial):
        if bound := [name for name in settings if name in attention.keywords]:
            raise ValueError(
                f"this layer passes {bound[0]!r} from its own setting, so the one in the functools.partial has no "
                "effect; remove one of the two"
            )
        if bound := [name for name in _OF_THE_LAYER if name in attention.keywords]:
            raise ValueError(
                f"a layer passes {bound[0]!r} itself, so the one in functools.partial has no effect; give a function "
                "that combines both, such as def local(query, key, value, *, mask, **kwargs): return "
                "F.attention(query, key, value, mask=mask & masks.window(W), **kwargs); the mask may be None"
            )
        attention = attention.func


def without_partials(attention: object) -> object:
    """Returns the function or module inside a ``functools.partial``, or the attention itself."""
    while isinstance(attention, functools.partial):
        attention = attention.func
    return attention


def name_of(attention: object) -> str:
    """Returns the name of an attention function for messages."""
    attention = without_partials(attention)
    return getattr(attention, "__qualname__", type(attention).__name__)


def taken_options(attention: AttentionFunction, **arguments: object) -> dict[str, object]:
    """Returns those options of a layer that are not None, and those for which an attention function has no default.

    Raises:
      TypeError: it does not take an option that the layer has.
    """
    try:
        parameters = inspect.signature(attention).parameters
    except ValueError:  # a function without a signature
        parameters = {}
    takes_any = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    required = [name for name, p in parameters.items() if p.default is p.empty]
    taken = {name: x for name, x in arguments.items() if x is not None or name in required}
    if not takes_any and (missing := [name for name in taken if name not in parameters]):
        raise TypeError(
            f"this layer has a {missing[0]}, which the attention function {name_of(attention)} does not take; "
            f"add the argument {missing[0]!r}, or use a model without it"
        )
    return taken


def check_result(result: ResultT, query: Array | np.ndarray, values: Array | np.ndarray) -> ResultT:
    """Returns the result of an attention function, whose shape may be wrong if it is a user's own.

    Raises:
      ValueError: it is not an array ``[B, T, N, H]``.
    """
    expected = (*query.shape[:3], values.shape[3])
    shape = getattr(result, "shape", None)
    if shape != expected:
        got = f"a {type(result).__name__}" if shape is None else f"shape {list(shape)}"
        raise ValueError(f"an attention function must return an array [B, T, N, H] = {list(expected)}, got {got}")
    return result


def _wrapped_module(attention: object) -> nnx.Module | None:
    """Returns the module inside partials and decorators, or the one whose method this is, or None."""
    if isinstance(attention, nnx.Module):
        return None
    while attention is not None and not isinstance(attention, nnx.Module):
        owner, inner = (getattr(attention, name, None) for name in ("__self__", "__wrapped__"))
        attention = owner if isinstance(owner, nnx.Module) else getattr(attention, "func", inner)
    return attention


_OF_THE_LAYER = ("mask", "bias", "dropout")
