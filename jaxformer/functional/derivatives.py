"""Guards that reject unsupported derivatives of a function with an error that names an alternative.

A function with a custom backward pass (``jax.custom_vjp``) has a gradient but no forward-mode derivative, and a loop of
unknown length in that pass rules out a second reverse-mode derivative. JAX's own errors name neither the function nor
an alternative. ``docs/derivatives.md`` has the table.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

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
    return _guarded(tree, "reverse only", reason)


def once(tree: T, reason: str) -> T:
    """Returns a pytree unchanged; its arrays have a gradient, and every other derivative raises an error.

    Raises:
      ValueError: when differentiated in forward mode or twice; the message is `reason`.

    >>> square = lambda x: once(x, "use another function") ** 2
    >>> jax.grad(square)(3.0).item()
    6.0
    """
    return _guarded(tree, "once", reason)


def not_reversed(tree: T, reason: str) -> T:
    """Returns a pytree unchanged; reverse-mode differentiation through its arrays raises an error.

    Applied to the results of a backward pass, it rejects the gradient of a gradient.

    Raises:
      ValueError: when differentiated in reverse mode; the message is `reason`.

    >>> square = lambda x: not_reversed(x**2, "use another function")
    >>> jax.jvp(square, (3.0,), (1.0,))[1].item()
    6.0
    """
    return _guarded(tree, "not reversed", reason)


def _primitive(name: str) -> Primitive:
    """Returns a primitive with one argument and the parameter `reason`, whose result is like its argument."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda aval, **_: aval)
    batching.defvectorized(primitive)
    return primitive


def _identity(x: T, **_: object) -> T:
    return x


def _raise(*_: object, reason: str, **__: object) -> NoReturn:
    raise ValueError(reason)


# Applied to a tangent. The backward pass transposes it without ever evaluating it, so only forward mode evaluates it,
# lowers it, or, as `jax.jacfwd` does, lifts it with `jax.vmap`.
_no_forward = _primitive("no_forward_mode")
_no_forward.def_impl(_raise)
mlir.register_lowering(_no_forward, _raise)
batching.primitive_batchers[_no_forward] = _raise
ad.deflinear2(_no_forward, lambda upstream, _, *, reason: [upstream])

_no_reverse = _primitive("no_reverse_mode")
_no_reverse.def_impl(_identity)
mlir.register_lowering(_no_reverse, lambda context, tangent, *, reason: [tangent])
ad.deflinear2(_no_reverse, _raise)

# Applied to a value; `limit` names what its tangent, or the value itself in a derivative, is limited to. It is a
# primitive because `jax.vmap` of a `jax.custom_jvp` would also lift the tangent, and the gradient of that is legal.
_guard = _primitive("derivative_guard")
_guard.def_impl(_identity)
mlir.register_lowering(_guard, lambda context, x, *, limit, reason: [x])


def _guard_jvp(primals, tangents, *, limit, reason):
    x, tangent = primals[0], tangents[0]
    if limit == "never":
        raise ValueError(reason)
    if limit == "once":  # an outer derivative of this one differentiates the value
        x = _guard.bind(x, limit="never", reason=reason)
    return x, (_no_reverse if limit == "not reversed" else _no_forward).bind(tangent, reason=reason)


ad.primitive_jvps[_guard] = _guard_jvp


def _guarded(tree: T, limit: str, reason: str) -> T:
    return jax.tree.map(lambda x: _guard.bind(x, limit=limit, reason=reason) if _is_real(x) else x, tree)


def _is_real(x: ArrayLike) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)
