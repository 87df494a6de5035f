"""Calls of an attention function with arrays of NumPy, by its framework; `torch_functions` has those of PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.conformance.adapter import Adapter, NotOfferedError, Request

Tree = dict[str, Any]


class Engine:
    """Calls a function of NumPy, which has no derivatives; subclasses call those of other frameworks.

    Results are arrays of NumPy in the layout ``[B, T, N, H]``.
    """

    changed = ""
    """The argument that the last call has changed, or an empty text."""
    last: Request | None = None
    """The last request, which an exception belongs to."""

    def __init__(self, adapter: Adapter):
        self.adapter = adapter

    def output(self, request: Request, seed: int = 0) -> np.ndarray:
        self.last = request
        arguments = {name: copy.copy(x) for name, x in self.adapter.arguments(request, seed).items()}
        inputs = {name: np.array(self.adapter.to_layout(getattr(request, name))) for name in ("query", "key", "value")}
        before = {name: x.copy() for name, x in (inputs | arguments).items() if isinstance(x, np.ndarray)}
        result = np.asarray(self.adapter.function(*inputs.values(), **arguments))
        after = inputs | arguments
        self.changed = next((name for name, x in before.items() if not np.array_equal(x, after[name], True)), "")
        return np.asarray(self.adapter.from_layout(result))

    def pull(self, request: Request, upstream: np.ndarray) -> Tree:
        """Returns the gradients of query, key, value and bias, if there is one."""
        raise NotOfferedError("a function of NumPy has no gradients")

    def curve(self, request: Request, upstream: np.ndarray, direction: Tree, mode: str) -> Tree:
        """Returns the derivative of the gradients of query, key and value along a direction, in this mode."""
        raise NotOfferedError("a function of NumPy has no gradients")


class JaxEngine(Engine):
    """Calls a function of JAX in `jax.jit`, or outside if only that works: the property "jit" says so."""

    jitted: bool | None = None

    def split(self, request: Request, seed: int = 0) -> tuple[Tree, Tree]:
        """Returns the arrays of a call, in the layout of the function, and its other arguments."""
        self.last = request
        names = {"query": request.query, "key": request.key, "value": request.value}
        arrays = {f"*{name}": jnp.asarray(self.adapter.to_layout(x)) for name, x in names.items()}
        others = {}
        for name, x in self.adapter.arguments(request, seed).items():
            leaves = jax.tree.leaves(x)
            are_arrays = bool(leaves) and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)
            (arrays if are_arrays or (not leaves and x is not None) else others)[name] = x
        return arrays, others

    def called(self, others: Tree) -> Callable[[Tree], jax.Array]:
        """Returns the call as a function of its arrays, with a result ``[B, T, N, H]``."""

        def call(arrays: Tree) -> jax.Array:
            inputs = [arrays[name] for name in ("*query", "*key", "*value")]
            named = {name: x for name, x in arrays.items() if name[0] != "*"}
            return self.adapter.from_layout(self.adapter.function(*inputs, **named, **others))

        return call

    def run(self, function: Callable[..., Any], *arguments: Tree) -> Any:
        """Returns the result of a function in `jax.jit`, or outside for an attention that works outside only."""
        if self.jitted is None:
            self.jitted = self._works_in_jit()
        if self.jitted:
            function = jax.jit(function)
        return function(*arguments)

    def _works_in_jit(self) -> bool:
        """Traces the attention as in the last request; raises what it raises outside of `jax.jit`."""
        assert self.last is not None
        arrays, others = self.split(self.last)
        call = self.called(others)
        try:
            jax.eval_shape(call, arrays)
        except Exception:
            call(arrays)
            return False
        return True

    def output(self, request: Request, seed: int = 0) -> np.ndarray:
        arrays, others = self.split(request, seed)
        return np.asarray(self.run(self.called(others), arrays))

    def loss(self, request: Request, upstream: np.ndarray) -> tuple[Callable[..., jax.Array], Tree, Tree]:
        """Returns a scalar function of (its variables, other arrays), the variables and the other arrays."""
        arrays, others = self.split(request)
        call = self.called(others)
        names = [name for name in arrays if name[0] == "*" or (name == self.adapter.bias and request.bias is not None)]
        variables = {name: jnp.asarray(arrays.pop(name)) for name in names}

        def loss(variables: Tree, arrays: Tree) -> jax.Array:
            result = call({**variables, **arrays})
            return jnp.sum(result.astype(jnp.float32) * jnp.asarray(upstream, jnp.float32))

        return loss, variables, arrays

    def pull(self, request: Request, upstream: np.ndarray) -> Tree:
        loss, variables, arrays = self.loss(request, upstream)
        return self.named(self.run(jax.grad(loss), variables, arrays))

    def named(self, slopes: Tree) -> Tree:
        found = {name[1:]: np.asarray(self.adapter.from_layout(x)) for name, x in slopes.items() if name[0] == "*"}
        for name in slopes.keys() & {self.adapter.bias}:
            found["bias"] = np.asarray(slopes[name])
        return found

    def curve(self, request: Request, upstream: np.ndarray, direction: Tree, mode: str) -> Tree:
        loss, variables, arrays = self.loss(request, upstream)
        along = {f"*{name}": jnp.asarray(self.adapter.to_layout(x)) for name, x in direction.items()}

        def curved(variables: Tree, arrays: Tree) -> Tree:
            slope = lambda v: jax.grad(loss)(v, arrays)
            if mode == "forward over reverse":
                return jax.jvp(slope, (variables,), (along,))[1]
            return jax.grad(lambda v: sum(jnp.sum(slope(v)[name] * x) for name, x in along.items()))(variables)

        return self.named(self.run(curved, variables, arrays))
