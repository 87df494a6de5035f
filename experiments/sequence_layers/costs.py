"""The cost of one layer by length: operations, sequential steps, the longest path, memory and time."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.sequence_layers import layers
from jaxformer import functional, masks, modules, pure
from jaxformer.planning.graph import products

D_MODEL, WINDOW = 128, 64
LENGTHS = 64, 256, 1024, 4096, 16384
MAKES: dict[str, Callable[[int], layers.Make]] = {
    "recurrent": lambda length: layers.recurrent(D_MODEL, cell="rnn"),
    "convolution": lambda length: layers.convolution(D_MODEL),
    "dilated": lambda length: layers.convolution(D_MODEL, dilation=layers.dilations(length)[-1]),
    "attention": lambda length: layers.attention(D_MODEL),
    "window": lambda length: layers.attention(D_MODEL, window=WINDOW),
    "linear": lambda length: layers.linear_attention(D_MODEL),
}
"""One layer of each kind for a length; of the dilated stack, the last."""

TABLE: dict[str, tuple[Callable[[int], float], Callable[[int], float], Callable[[int], float]]] = {
    "recurrent": (lambda n: n * D_MODEL**2, lambda n: n, lambda n: n),
    "convolution": (lambda n: layers.KERNEL * n * D_MODEL**2, lambda n: 1, lambda n: n / layers.KERNEL),
    "dilated": (lambda n: layers.KERNEL * n * D_MODEL**2, lambda n: 1, lambda n: np.log(n) / np.log(layers.KERNEL)),
    "attention": (lambda n: n**2 * D_MODEL, lambda n: 1, lambda n: 1),
    "window": (lambda n: WINDOW * n * D_MODEL, lambda n: 1, lambda n: n / WINDOW),
}
"""A layer's operations, sequential operations and longest path, up to constants (Vaswani et al. 2017, table 1)."""


def measure(kind: str, length: int, *, seconds: float) -> dict[str, Any]:
    """Returns everything about one kind of layer at one length; each time is taken for about `seconds`."""
    net = pure(lambda config, rngs: MAKES[kind](length)(rngs), None)
    params = jax.jit(net.init)(jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, length, D_MODEL)), jnp.float32)
    forward = jax.jit(net.apply)
    gradient = jax.jit(jax.grad(lambda params, x: (net.apply(params, x) ** 2).sum(), argnums=(0, 1)))
    row: dict[str, Any] = {"kind": kind, "length": length, "path": path(kind, length)} | operations(kind, length)
    for name, function in (("forward", forward), ("gradient", gradient)):
        compiled = function.lower(params, x).compile()
        row[f"{name}_bytes"] = temporary_bytes(compiled)
        row[f"{name}_seconds"] = timed(lambda: jax.block_until_ready(compiled(params, x)), seconds)  # noqa: B023
    if kind == "attention":
        dense = pure(lambda config, rngs: layers.attention(D_MODEL, definition=True)(rngs), None)
        shapes = dense.shapes, jax.ShapeDtypeStruct(x.shape, x.dtype)
        loss = lambda params, x: (dense.apply(params, x) ** 2).sum()
        for name, function in (("forward", dense.apply), ("gradient", jax.grad(loss, argnums=(0, 1)))):
            row[f"definition_{name}_bytes"] = temporary_bytes(jax.jit(function).lower(*shapes).compile())
    return row


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns the memory that a program needs besides its arguments and results."""
    analysis = compiled.memory_analysis()
    assert analysis is not None, "the devices here report no memory"
    return analysis.temp_size_in_bytes


def timed(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """Returns the median time of a call, which is repeated for about `seconds`, at least 3 times.

    `cpu` is the time of all threads on the processor, which other programs lengthen less than `wall` time.
    """
    call()
    times: list[tuple[float, float]] = []
    while len(times) < 3 or (sum(wall for wall, _ in times) < seconds and len(times) < 100):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    walls, cpus = zip(*times, strict=True)
    return {"wall": statistics.median(walls), "cpu": statistics.median(cpus)}


def operations(kind: str, length: int) -> dict[str, int]:
    """Returns counted and calculated operations, and the number of products in a row.

    The graph is that of the definition, where attention computes all pairs. `flops` is the count of the program that
    runs: blocks that the mask rules out are skipped, and the scores of the others are counted as they are computed.
    """
    make = MAKES[kind](length)
    if kind in ("attention", "window"):
        make = layers.attention(D_MODEL, window=WINDOW if kind == "window" else None, definition=True)
    net = pure(lambda config, rngs: make(rngs), None)
    x = jax.ShapeDtypeStruct((1, length, D_MODEL), jnp.float32)
    graph = products(net.apply, net.shapes, x)
    found = {"graph_flops": graph.flops, "shape_flops": by_shape(kind, length), "in_a_row": graph.in_a_row}
    if kind in ("convolution", "dilated"):  # without loops, XLA's count is one of the whole program
        costs = jax.jit(net.apply).lower(net.shapes, x).compile().cost_analysis()
        found["xla_flops"] = int(costs["flops"]) if costs else -1
    found["flops"] = graph.flops
    if kind in ("attention", "window"):
        everything = 4 * length**2 * D_MODEL
        found["flops"] += 4 * scores(kind, length) * D_MODEL - everything
    return found


def by_shape(kind: str, length: int) -> int:
    """Returns the operations of the products of the definition, from shapes alone: two for each multiply-add."""
    square, chunk = D_MODEL**2, min(128, length)
    return {
        "recurrent": 2 * length * 2 * square,
        "convolution": 2 * length * layers.KERNEL * square,
        "dilated": 2 * length * layers.KERNEL * square,
        "attention": 2 * length * (4 * square + 2 * length * D_MODEL),
        "window": 2 * length * (4 * square + 2 * length * D_MODEL),
        # In each chunk: scores and mixing, reading and writing the sums of features times values, and of features.
        "linear": 2 * length * (4 * square + 2 * chunk * D_MODEL + 2 * square // layers.HEADS + D_MODEL),
    }[kind]


def scores(kind: str, length: int) -> int:
    """Returns the number of scores that blockwise attention computes for a head, counted while it runs."""
    seen = []

    def score(logits: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: seen.append(logits.size))
        return logits

    x = jnp.zeros((1, length, 1, 1))
    mask = masks.causal() if kind == "attention" else masks.window(WINDOW)
    functional.attention(x, x, x, mask=mask, score=score, implementation="blockwise").block_until_ready()
    jax.effects_barrier()
    return sum(seen)


def path(kind: str, length: int) -> int:
    """Returns the length of the path from the first position to the last, in layers or steps of the recurrence.

    What a layer reaches is the support of the gradient of its last row. The same offsets hold at every row (a test
    checks it), so following them from row to row needs no deeper network.
    """
    if kind == "dilated":
        steps = [offsets(layers.convolution(4, dilation=d), length) for d in layers.dilations(length)]
        return hops(steps, length)
    make = {
        "recurrent": lambda: None,
        "convolution": lambda: layers.convolution(4),
        "attention": lambda: layers.attention(4),
        "window": lambda: layers.attention(4, window=WINDOW),
        "linear": lambda: layers.linear_attention(4),
    }[kind]()
    return hops(itertools.repeat(_recurrent_offsets() if make is None else offsets(make, length)), length)


def offsets(make: layers.Make, length: int, row: int = -1) -> np.ndarray:
    """Returns the distances of a row to the rows behind it on which it depends through one layer."""
    net = pure(lambda config, rngs: make(rngs), None)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((1, length, 4)), jnp.float32)
    slope = jax.jit(jax.grad(lambda x: net.apply(net.init(jax.random.key(0)), x)[0, row].sum()))(x)
    return np.arange(length)[row] - np.flatnonzero(np.asarray(slope[0]).any(-1))


def _recurrent_offsets() -> np.ndarray:
    """Returns the same for one step of the recurrence: a state depends on the state before it."""
    cell = pure(lambda config, rngs: modules.Recurrent(4, 4, cell="rnn", rngs=rngs), None)
    step = lambda before: cell.bind(cell.init(jax.random.key(0))).step(jnp.ones((1, 4)), before).hidden.sum()
    start = functional.recurrent_start(functional.rnn_cell, (1, 4))
    assert np.asarray(jax.grad(step)(start).hidden).any()
    return np.array([1])


def hops(steps: Any, length: int) -> int:
    """Returns the number of steps, each a set of offsets, after which the first position reaches the last."""
    reached = np.arange(length) == 0
    for number, step in enumerate(steps, 1):
        reached = _moved(reached, step)
        if reached[-1]:
            return number
    raise ValueError(f"the last of {length} positions is not reached by {number} layers")


def _moved(reached: np.ndarray, step: Sequence[int] | np.ndarray) -> np.ndarray:
    rows = np.flatnonzero(reached)
    moved = np.zeros_like(reached)
    if len(step) == len(reached):  # attention to everything behind
        moved[rows.min() :] = True
        return moved
    for offset in step:
        moved[rows[rows + offset < len(moved)] + offset] = True
    return moved
