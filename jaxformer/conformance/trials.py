"""The parts of a property: sizes that shrink, drawn inputs, a subject that is called, and the outcome of a trial."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.conformance import oracle
from jaxformer.conformance.adapter import Adapter, NotOfferedError, Request
from jaxformer.conformance.engines import Engine, JaxEngine

LIMITS = {"float32": 1e-5, "bfloat16": 0.03, "float16": 4e-3}
"""The largest error of a result, relative to results above 1: some roundings of each dtype; of gradients, 4 times."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Batch, queries, keys, heads, key heads and dims."""

    B: int = 2
    T: int = 5
    S: int = 7
    N: int = 4
    K: int = 4
    H: int = 4
    J: int = 4

    def smaller(self) -> list[Sizes]:
        """Returns sizes with one number less, or more of them, the smallest first; groups of heads remain groups."""
        results = []
        for name in ("B", "N", "H", "T", "S"):
            size = getattr(self, name)
            for less in range(1, min(size, 8)):
                changed = {name: less}
                if name == "N":
                    changed["K"] = less * self.K // self.N if less * self.K % self.N == 0 else 0
                if name == "H":
                    changed["J"] = less if self.J == self.H else self.J
                if all(changed.values()):
                    results.append(dataclasses.replace(self, **changed))
        return results


def draw(sizes: Sizes, dtype: str = "float32", seed: int = 0) -> Request:
    """Returns queries, keys and values, with one decimal, so that they can be printed."""
    random = np.random.default_rng(seed)
    of = lambda *shape: random.standard_normal(shape).round(1).astype(jnp.dtype(dtype))
    query, key = of(sizes.B, sizes.T, sizes.N, sizes.H), of(sizes.B, sizes.S, sizes.K, sizes.H)
    return Request(query, key, of(sizes.B, sizes.S, sizes.K, sizes.J))


def draw_upstream(request: Request) -> np.ndarray:
    """Returns an upstream gradient of the output of a request."""
    shape = (*request.query.shape[:3], request.value.shape[3])
    return np.random.default_rng(1).standard_normal(shape).round(1).astype(np.float32)


def coin(*shape: int) -> np.ndarray:
    """Returns a Boolean array with about a third False; each query may attend to the last key."""
    array = np.random.default_rng(sum(shape)).random(shape) > 0.35
    array[..., -1] = True
    return array


def shaped(letters: str, request: Request) -> tuple[int, ...]:
    """Returns the shape of letters such as "B11S"."""
    (batch, num_queries, num_heads, _), num_keys = request.query.shape, request.key.shape[1]
    sizes = {"B": batch, "N": num_heads, "T": num_queries, "S": num_keys, "1": 1}
    return tuple(sizes[letter] for letter in letters)


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a trial; it has failed if there is a failure."""

    error: float = 0.0
    failure: str = ""
    request: Request | None = None
    of: str = "output"
    """The subject of the failure: "output" or "gradients"."""
    note: str = ""


@dataclasses.dataclass
class Subject:
    """The function that is checked."""

    adapter: Adapter
    engine: Engine
    limits: Mapping[str, float]

    def expected(self, request: Request, **changes: Any) -> np.ndarray:
        return oracle.attention(request.query, request.key, request.value, **self.exactly(request) | changes)[0]

    def exactly(self, request: Request) -> dict[str, Any]:
        """Returns the options of the oracle."""
        allowed = request.allowed(self.adapter.causal_from)
        return {"allowed": allowed, "bias": request.bias, "scale": request.scale}

    def limit(self, request: Request) -> float:
        return self.limits[request.query.dtype.name]

    def output(self, request: Request) -> np.ndarray:
        """Calls the function; its result has the right shape."""
        result = self.engine.output(request)
        wanted = (*request.query.shape[:3], request.value.shape[3])
        if result.shape != wanted:
            raise BrokenError(f"returns shape {list(result.shape)}, expected {list(wanted)} as [B, T, N, J]")
        return result

    def compare(
        self,
        request: Request,
        others: Mapping[str, Callable[[], np.ndarray]] | None = None,
        limit: float | None = None,
    ) -> Outcome:
        """Compares the output with float64; a failure names the one of the `others` that it agrees with."""
        got, limit = self.output(request), self.limit(request) if limit is None else limit
        error = distance(got, self.expected(request))
        if error <= limit:
            return Outcome(error)
        failure = "returns NaN or infinity" if not np.isfinite(error) else f"differs from float64 by {error:.2g}"
        for name, other in (others or {}).items():
            if distance(got, other()) <= limit:
                failure += f"; it agrees with {name}"
                break
        return Outcome(error, failure, request)

    def near(
        self, got: Any, want: Any, request: Request, change: str, *, times: int = 1, of: str = "output"
    ) -> Outcome:
        """Compares two results, or trees of them, which may differ by some `times` the limit.

        Args:
          change: the beginning of what a failure says, such as "differs from a loop"; how much follows.
        """
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
        error = max(distance(a, b) for a, b in pairs)
        failure = ""
        if error > times * self.limit(request):
            failure = f"{change} by {error:.2g}"
        return Outcome(error, failure, request, of)

    def slopes(self, request: Request) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the gradients, and the upstream gradient that they are of."""
        upstream = draw_upstream(request)
        return self.engine.pull(request, upstream), upstream

    def exact_slopes(self, request: Request, upstream: np.ndarray) -> dict[str, np.ndarray]:
        inputs = request.query, request.key, request.value
        query, key, value, bias = oracle.gradients(*inputs, upstream, **self.exactly(request))
        slopes = {"query": query, "key": key, "value": value}
        if request.bias is not None:
            bias = bias.sum(tuple(range(4 - request.bias.ndim)))
            one = tuple(dim for dim, size in enumerate(request.bias.shape) if size == 1)
            slopes["bias"] = bias.sum(one, keepdims=True)
        return slopes

    def jax(self, what: str) -> JaxEngine:
        """Returns the engine, if the function is one of JAX."""
        if not isinstance(self.engine, JaxEngine):
            raise NotOfferedError(f"{what} is for functions of JAX, this is one of {self.adapter.framework}")
        return self.engine


class BrokenError(Exception):
    """The result of a function cannot be compared; the message says why."""


def distance(got: Any, want: Any) -> float:
    """Returns the largest difference, relative to wanted values above 1; infinite for NaN."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        return np.inf
    if not got.size:
        return 0.0
    error = np.abs(got - want).max() / max(1.0, np.abs(want).max())
    return float(error) if np.isfinite(error) else np.inf


Trial = Callable[[Subject, Sizes], Outcome]


@dataclasses.dataclass(frozen=True)
class Property:
    """A property, and its trials by a label: a dtype, a shape or a case."""

    name: str
    about: str
    trials: Mapping[str, Trial]
    sizes: Sizes = Sizes()


PROPERTIES: dict[str, Property] = {}
"""All properties in the order of a report."""


AnyTrial = Callable[..., Outcome]


def prop(name: str, *labels: str, sizes: Sizes = Sizes()) -> Callable[[AnyTrial], AnyTrial]:
    """Registers a property whose trials call the function with each of these labels."""

    def register(function: AnyTrial) -> AnyTrial:
        trials = {label: functools.partial(function, label=label) for label in labels} or {"": function}
        PROPERTIES[name] = Property(name, (function.__doc__ or "").strip(), trials, sizes)
        return function

    return register
