"""Matrix products in the graph of a traced function: their operations, and the longest chain of dependent ones.

XLA's own cost analysis counts the body of a loop once; here each product is counted as often as it runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
from jax.extend.core import Jaxpr, JaxprEqn

array_of = operator.attrgetter("aval")
"""Returns the shape and dtype of an input or output of an operation."""

PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")


class Products(NamedTuple):
    """The matrix products of a function, convolutions included."""

    flops: int
    """Two operations for each multiply-add; those of a convolution include the padding of its input but not of
    its kernel, those of a product by groups (`jax.lax.ragged_dot`) count every row once, and those in `jax.shard_map`
    count on each of its devices."""
    in_a_row: int
    """The length of the longest chain of products that depend on each other: the number of sequential steps."""


def products(function: Callable[..., object], *args: object, **kwargs: object) -> Products:
    """Returns the products of a function of arrays or of their shapes; nothing is computed.

    Raises:
      ValueError: a loop runs until a condition holds, so the number of its products is unknown.

    >>> import jax.numpy as jnp
    >>> step = lambda state, _: (jnp.tanh(state @ jnp.ones((4, 4))), None)
    >>> products(lambda x: jax.lax.scan(step, x @ jnp.ones((4, 4)), length=9)[0], jnp.ones((1, 4)))
    Products(flops=320, in_a_row=10)
    """
    jaxpr = jax.make_jaxpr(function)(*args, **kwargs).jaxpr
    return Products(flops(jaxpr), max(_depths(jaxpr, [0] * len(jaxpr.invars)), default=0))


def flops(jaxpr: Jaxpr, dtype: str = "") -> int:
    """Returns the operations of all products in a graph, or of those whose operands have a dtype: see `Products`."""
    padded = {id(e.outvars[0]): array_of(e.invars[0]).shape for e in jaxpr.eqns if e.primitive.name == "pad"}
    return sum(_own_flops(equation, padded, dtype) + _inner_flops(equation, dtype) for equation in jaxpr.eqns)


def _own_flops(equation: JaxprEqn, padded: Mapping[int, tuple[int, ...]], dtype: str) -> int:
    if equation.primitive.name not in PRODUCTS or (dtype and array_of(equation.invars[0]).dtype != dtype):
        return 0
    left, right = (array_of(v).shape for v in equation.invars[:2])
    size = math.prod(array_of(equation.outvars[0]).shape)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * size * math.prod(left[i] for i in contracted)
    if equation.primitive.name == "ragged_dot_general":  # each row is multiplied by the kernel of its own group only
        numbers = equation.params["ragged_dot_dimension_numbers"]
        (contracted, _), _ = numbers.dot_dimension_numbers
        is_sum_by_group = set(numbers.lhs_ragged_dimensions) & set(contracted)  # the gradient of the kernels
        num_groups = array_of(equation.invars[2]).shape[-1] if is_sum_by_group else 1
        return 2 * size * math.prod(left[i] for i in contracted) // num_groups
    kernel: tuple[int, ...] = padded.get(id(equation.invars[1]), right)
    return 2 * size * math.prod(kernel) // kernel[equation.params["dimension_numbers"].rhs_spec[0]]


def _inner_flops(equation: JaxprEqn, dtype: str) -> int:
    counts = [flops(part, dtype) for part in inner(equation)]
    if equation.primitive.name == "cond":
        return max(counts, default=0)
    return sum(counts) * times(equation)


def times(equation: JaxprEqn) -> int:
    """Returns the number of runs of the graphs inside an operation: iterations of a loop, or devices."""
    params = equation.params
    if equation.primitive.name == "shard_map":
        axes = params.get("newly_manual_axes", params.get("manual_axes", ()))  # before JAX 0.12
        return math.prod(params["mesh"].shape[axis] for axis in axes)
    return params["length"] if equation.primitive.name == "scan" else 1


def inner(equation: JaxprEqn) -> list[Jaxpr]:
    """Returns the graphs inside an operation; those of a loop or of a call are in the order of its inputs."""
    if equation.primitive.name == "while" and flops(equation.params["body_jaxpr"].jaxpr):
        raise ValueError("the products of a while loop have no known number; use lax.scan, or another implementation")
    return graphs(equation)


def graphs(equation: JaxprEqn) -> list[Jaxpr]:
    """Returns the graphs inside an operation, also those of a loop whose number of iterations is unknown."""
    inside = (x for p in equation.params.values() for x in (p if isinstance(p, tuple | list) else (p,)))
    found = (getattr(x, "jaxpr", x) for x in inside)
    return [graph for graph in found if hasattr(graph, "eqns")]


def _depths(jaxpr: Jaxpr, inputs: Iterable[int]) -> list[int]:
    """Returns the longest chain that ends in each output, given those that end in the inputs."""
    depth = {id(v): d for v, d in zip(jaxpr.invars, inputs, strict=True)}
    of = lambda v: depth.get(id(v), 0)
    for equation in jaxpr.eqns:
        depths = [of(v) for v in equation.invars]
        for v, d in zip(equation.outvars, _outputs(equation, depths), strict=True):
            depth[id(v)] = d
    return [of(v) for v in jaxpr.outvars]


def _outputs(equation: JaxprEqn, depths: list[int]) -> list[int]:
    """Returns the longest chain that ends in each output of an operation."""
    name, parts = equation.primitive.name, inner(equation)
    if name == "scan":
        return _through_loop(equation, parts[0], depths)
    if name == "cond":
        branches = [_depths(part, depths[1:]) for part in parts]
        return [max(depths[0], *branch) for branch in zip(*branches, strict=True)]
    if parts and len(parts[0].invars) == len(depths) and len(parts[0].outvars) == len(equation.outvars):
        return _depths(parts[0], depths)
    deepest = max((max(_depths(part, [0] * len(part.invars)), default=0) for part in parts), default=0)
    return [max(depths, default=0) + deepest + (name in PRODUCTS)] * len(equation.outvars)


def _through_loop(equation: JaxprEqn, body: Jaxpr, depths: list[int]) -> list[int]:
    # An array that a loop iterates over has one more dimension outside the body than inside. (The names of the loop's
    # parameters depend on the version of JAX.)
    alike = lambda outer, inner: sum(array_of(o).ndim == array_of(i).ndim for o, i in zip(outer, inner, strict=True))
    num_carry, num_kept = alike(equation.outvars, body.outvars), alike(equation.invars, body.invars)
    num_consts = num_kept - num_carry
    consts, carry, rows = depths[:num_consts], depths[num_consts:num_kept], depths[num_kept:]
    collected = [0] * (len(equation.outvars) - num_carry)
    for _ in range(equation.params["length"]):
        outputs = _depths(body, [*consts, *carry, *rows])
        ended = [max(old, new) for old, new in zip(collected, outputs[num_carry:], strict=True)]
        if outputs[:num_carry] == carry and ended == collected:
            break
        carry, collected = outputs[:num_carry], ended
    return [*carry, *collected]
