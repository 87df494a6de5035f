"""Guards that reject unsupported derivatives of a function with an error that names an alternative.

A function with a custom backward pass (``jax.custom_vjp``) has a gradient but no forward-mode derivative, and a loop of
unknown length in that pass rules out a second reverse-mode derivative. JAX's own errors name neither the function nor
an alternative. ``docs/derivatives.md`` has the table.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

T = TypeVar("T")


def reverse_only(tree: T, reason: str) -> T:
    """Returns a pytree unchanged; forward-mode differentiation with respect to its arrays raises an error.

    The gradient, and a forward-mode derivative of the gradient, are allowed.

    Raises:
      ValueError: when differentiated in forward mode, or when such a program is compiled; the message is `reason`.

    >>> square = lambda x: reverse_only(x, "use another function") ** 2
    >>> jax.grad(square)(3.0).item(), jax.jvp(jax.grad(square), (3.0,), (1.0,))[1].item()
    (6.0, 2.0)
    """
    return _guarded(tree, _no_forward, reason)


def once(tree: T, reason: str) -> T:
    """Returns a pytree unchanged; its arrays have a gradient, and every other derivative raises an error.

    Raises:
      ValueError: when differentiated in forward mode or twice; the message is `reason`.

    >>> square = lambda x: once(x, "use another function") ** 2
    >>> jax.grad(square)(3.0).item()
    6.0
    """
    return jax.tree.map(lambda x: _once(reason, x) if _is_real(x) else x, tree)


def not_reversed(tree: T, reason: str) -> T:
    """Returns a pytree unchanged; reverse-mode differentiation through its arrays raises an error.

    Applied to the results of a backward pass, it rejects the gradient of a gradient.

    Raises:
      ValueError: when differentiated in reverse mode; the message is `reason`.

    >>> square = lambda x: not_reversed(x**2, "use another function")
    >>> jax.jvp(square, (3.0,), (1.0,))[1].item()
    6.0
    """
    return _guarded(tree, _no_reverse, reason)


def _primitive(name: str) -> Primitive:
    """Returns a linear primitive with one argument and the parameter `reason`, without implementation or lowering."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda aval, *, reason: aval)
    batching.defvectorized(primitive)
    return primitive


def _raise(*_: Any, reason: str) -> Any:
    raise ValueError(reason)


# Applied to a tangent. The backward pass transposes it without ever evaluating it.
_no_forward = _primitive("no_forward_mode")
_no_forward.def_impl(_raise)
mlir.register_lowering(_no_forward, _raise)
ad.deflinear2(_no_forward, lambda upstream, _, *, reason: [upstream])

_no_reverse = _primitive("no_reverse_mode")
_no_reverse.def_impl(lambda tangent, *, reason: tangent)
mlir.register_lowering(_no_reverse, lambda context, tangent, *, reason: [tangent])
ad.deflinear2(_no_reverse, _raise)


def _guarded(tree: T, primitive: Primitive, reason: str) -> T:
    return jax.tree.map(lambda x: _guard(primitive, reason, x) if _is_real(x) else x, tree)


def _is_real(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _guard(primitive: Primitive, reason: str, x: Any) -> Any:
    return x


@_guard.defjvp
def _guard_jvp(primitive, reason, primals, tangents):
    return primals[0], primitive.bind(tangents[0], reason=reason)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _once(reason: str, x: Any) -> Any:
    return x


@_once.defjvp
def _once_jvp(reason, primals, tangents):
    # An outer derivative of this one differentiates the first result.
    return _never(reason, *primals), _no_forward.bind(tangents[0], reason=reason)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _never(reason: str, x: Any) -> Any:
    return x


_never.defjvp(lambda reason, primals, tangents: _raise(reason=reason))
