"""Calls of an attention function with arrays of NumPy, by its framework; `torch_functions` has those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.conformance.adapter import Adapter, NotOfferedError, Request
from jaxformer.conformance.torch_functions import TorchEngine

Tree = dict[str, Any]


class Engine(Protocol):
    """Calls a function; its results are arrays of NumPy in the layout ``[B, T, N, H]``."""

    adapter: Adapter
    changed: str
    """The argument that the last call has changed, or an empty text."""
    last: Request | None
    """The last request, which an exception belongs to."""

    def output(self, request: Request, seed: int = 0) -> np.ndarray: ...

    def pull(self, request: Request, upstream: np.ndarray) -> Tree:
        """Returns the gradients of query, key, value and bias, if there is one."""
        ...

    def curve(self, request: Request, upstream: np.ndarray, direction: Tree, mode: str) -> Tree:
        """Returns the derivative of the gradients of query, key and value along a direction, in this mode."""
        ...


class NumpyEngine:
    """A function of NumPy has no derivatives."""

    def __init__(self, adapter: Adapter):
        self.adapter, self.changed, self.last = adapter, "", None

    def output(self, request: Request, seed: int = 0) -> np.ndarray:
        self.last = request
        arguments = {
            name: np.array(x) if isinstance(x, np.ndarray) else x
            for name, x in self.adapter.arguments(request, seed).items()
        }
        inputs = {name: np.array(self.adapter.to_layout(getattr(request, name))) for name in ("query", "key", "value")}
        before = {name: x.copy() for name, x in (inputs | arguments).items() if isinstance(x, np.ndarray)}
        result = np.asarray(self.adapter.function(*inputs.values(), **arguments))
        after = inputs | arguments
        self.changed = next((name for name, x in before.items() if not np.array_equal(x, after[name], True)), "")
        return np.asarray(self.adapter.from_layout(result))

    def pull(self, request: Request, upstream: np.ndarray) -> Tree:
        raise NotOfferedError("a function of NumPy has no gradients")

    def curve(self, request: Request, upstream: np.ndarray, direction: Tree, mode: str) -> Tree:
        raise NotOfferedError("a function of NumPy has no gradients")


class JaxEngine:
    """Calls a function of JAX in `jax.jit`, or outside if only that works: the property "jit" says so."""

    changed = ""

    def __init__(self, adapter: Adapter):
        self.adapter, self.last = adapter, None
        self.jitted: bool | None = None

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
        if self.jitted is False:
            return function(*arguments)
        try:
            result, self.jitted = jax.jit(function)(*arguments), True
        except Exception:
            if self.jitted or self._works_in_jit():
                raise
            return function(*arguments)
        return result

    def _works_in_jit(self) -> bool:
        """Calls the attention as in the last request; raises what it raises outside of `jax.jit`."""
        assert self.last is not None
        arrays, others = self.split(self.last)
        call = self.called(others)
        try:
            jax.jit(call)(arrays)
            self.jitted = True
        except Exception:
            call(arrays)
            self.jitted = False
        return self.jitted

    def output(self, request: Request, seed: int = 0) -> np.ndarray:
        arrays, others = self.split(request, seed)
        return np.asarray(self.run(self.called(others), arrays))

    def loss(self, request: Request, upstream: np.ndarray) -> tuple[Callable[..., jax.Array], Tree, Tree]:
        """Returns a scalar function of (its variables, other arrays), the variables and the other arrays."""
        arrays, others = self.split(request)
        call = self.called(others)
        names = [name for name in arrays if name[0] == "*" or (name == self.adapter.bias and request.bias is not None)]
        variables = {name: jnp.asarray(arrays.pop(name)) for name in names}

        def loss(variables: Tree, arrays: Tree, upstream: jax.Array) -> jax.Array:
            result = call({**variables, **arrays})
            return jnp.sum(result.astype(jnp.float32) * upstream)

        arrays["^"] = jnp.asarray(upstream, jnp.float32)
        return lambda v, a: loss(v, {k: x for k, x in a.items() if k != "^"}, a["^"]), variables, arrays

    def pull(self, request: Request, upstream: np.ndarray) -> Tree:
        loss, variables, arrays = self.loss(request, upstream)
        return self.named(self.run(jax.grad(loss), variables, arrays))

    def named(self, slopes: Tree) -> Tree:
        plain = {name[1:]: np.asarray(self.adapter.from_layout(x)) for name, x in slopes.items() if name[0] == "*"}
        biases = [np.asarray(x) for name, x in slopes.items() if name[0] != "*"]
        return plain | dict(zip(("bias",), biases, strict=False))

    def curve(self, request: Request, upstream: np.ndarray, direction: Tree, mode: str) -> Tree:
        loss, variables, arrays = self.loss(request, upstream)
        along = {f"*{name}": jnp.asarray(self.adapter.to_layout(x)) for name, x in direction.items()}

        def forward(variables: Tree, arrays: Tree) -> Tree:
            return jax.jvp(lambda v: jax.grad(loss)(v, arrays), (variables,), (along,))[1]

        def reverse(variables: Tree, arrays: Tree) -> Tree:
            slope = lambda v: jax.grad(loss)(v, arrays)
            return jax.grad(lambda v: sum(jnp.sum(slope(v)[name] * x) for name, x in along.items()))(variables)

        return self.named(self.run(forward if mode == "forward over reverse" else reverse, variables, arrays))


def make_engine(adapter: Adapter) -> Engine:
    """Returns the engine of the framework of a function."""
    return {"jax": JaxEngine, "numpy": NumpyEngine, "torch": TorchEngine}[adapter.framework](adapter)
