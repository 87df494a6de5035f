"""Part 2: attention forward and with the gradient, and the thresholds of `choose` that would fit the results.

All sides compute the same: B T = 16,384 tokens in bfloat16, 16 heads of 64. Samples of the outputs are compared.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator.record import Case, Refused, Settings, aligned, number
from jaxformer import functional, masks
from jaxformer.functional.attention import api, blockwise
from jaxformer.functional.attention.base import make_request

TITLE = "Part 2: attention, milliseconds forward / forward and gradient"
KINDS = ("causal", "padded", "windowed", "packed")
LENGTHS = (2048, 512, 8192, 1024, 4096, 16384, 64, 128, 256)
"""The lengths, in order of importance."""
BLOCKS = tuple(f"blocks {size}" for size in (256, 512, 1024, 2048))
"""Sides: blockwise attention in tiles of other sizes."""
TILED = (2048, 8192)
"""The lengths at which they are measured, under the causal mask."""
TINY_LENGTHS = (32, 64)
OURS = ("cudnn", "blockwise", "reference", "tokamax", "splash", "xla")
THEIRS = ("jax.nn", "jax.nn cudnn")
TORCH = "PyTorch SDPA"
DENSE = ("reference", "xla", "jax.nn")
"""The sides that hold T x S arrays."""
MOST_BYTES = 48e9
"""The T x S arrays of a dense side are not tried above this."""
WINDOW, DOCUMENTS = 256, 8
"""Keys behind a query in a windowed mask; documents in a packed row."""


def cases(settings: Settings) -> list[Case]:
    """Returns a case for each mask, length and side; those of PyTorch have a process of their own."""
    found = []
    for kind in KINDS:
        lengths = TINY_LENGTHS if settings.tiny else LENGTHS
        for length in lengths:
            shape = (2, length, 2, 8) if settings.tiny else (16384 // length, length, 16, 64)
            tiled = kind == "causal" and length in (TINY_LENGTHS[:1] if settings.tiny else TILED)
            for side in (*OURS, *THEIRS, *(BLOCKS if tiled else ())):
                run = functools.partial(_measure, side, kind, shape)
                found.append(Case(f"{kind} {length} {side}", run, seconds=15))
        for length in lengths:
            shape = (2, length, 2, 8) if settings.tiny else (16384 // length, length, 16, 64)
            run = functools.partial(_measure_torch, kind, shape)
            found.append(Case(f"{kind} {length} {TORCH}", run, seconds=10, process="PyTorch"))
    return found


def inputs(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Returns query, key, value and an upstream gradient."""
    return [np.random.default_rng(i).standard_normal(shape, np.float32) for i in range(4)]


def valid(shape: tuple[int, ...]) -> np.ndarray:
    """Returns the real keys ``[B, T]`` of the padded mask: from half of them to all."""
    batch, length = shape[:2]
    return np.arange(length)[None] < np.linspace(length // 2, length, batch).astype(int)[:, None]


def documents(shape: tuple[int, ...]) -> np.ndarray:
    """Returns the document of each position ``[B, T]`` of the packed mask."""
    batch, length = shape[:2]
    return np.broadcast_to(np.arange(length) * DOCUMENTS // length, (batch, length)).astype(np.int32)


def window(shape: tuple[int, ...]) -> int:
    """Returns the number of keys behind a query that the windowed mask allows."""
    return min(WINDOW, shape[1] // 4)


def mask_of(kind: str, shape: tuple[int, ...]) -> masks.Mask:
    """Returns a mask of this library."""
    if kind == "causal":
        return masks.causal()
    if kind == "windowed":
        return masks.window(window(shape))
    if kind == "padded":
        return masks.padding(valid(shape))
    return masks.causal() & masks.segments(documents(shape))


def _measure(side: str, kind: str, shape: tuple[int, ...], settings: Settings) -> Mapping[str, Any]:
    batch, length, heads, _ = shape
    needed = batch * heads * length**2 * (4 + 2 + 4 + 4)  # logits, weights and their gradients
    if side in DENSE and needed > MOST_BYTES:
        raise Refused(f"its arrays of T x S would need about {needed / 1e9:.0f} GB")
    query, key, value, upstream = (jnp.asarray(x, jnp.bfloat16) for x in inputs(shape))
    mask = mask_of(kind, shape)
    request = make_request(query, key, value, mask=mask)
    if side in OURS and (reason := api.implementations[side].refuse(request)):
        raise Refused(reason)
    if side == "jax.nn cudnn" and (reason := api.implementations["cudnn"].refuse(request)):
        raise Refused(reason)
    attend, more = (_ours(side), mask) if side in (*OURS, *BLOCKS) else _theirs(kind, shape, cudnn="cudnn" in side)

    def both(query, key, value, more, upstream):
        output, pull = jax.vjp(lambda *arrays: attend(*arrays, more), query, key, value)
        return output, pull(upstream)

    forward, gradient = jax.jit(attend), jax.jit(both)
    arrays = query, key, value, more  # arguments: an array that a program closes over is a constant of it
    began = time.monotonic()
    output = np.asarray(forward(*arrays)[0]).astype(np.float32)
    jax.block_until_ready(gradient(*arrays, upstream))
    compiled = time.monotonic() - began
    return {
        "forward": seconds(lambda: forward(*arrays), jax.block_until_ready),
        "gradient": seconds(lambda: gradient(*arrays, upstream), jax.block_until_ready),
        "compile": compiled,
        "chosen": api.choose(request),
        "sample": sample(output),
    }


def _ours(side: str) -> Callable[..., jax.Array]:
    if side in BLOCKS:
        size = int(side.removeprefix("blocks "))
        make = functools.partial(blockwise.attention, query_block=size, key_block=size)
        return lambda q, k, v, mask: make(make_request(q, k, v, mask=mask))
    return lambda q, k, v, mask: functional.attention(q, k, v, mask=mask, implementation=side)


def _theirs(kind: str, shape: tuple[int, ...], *, cudnn: bool) -> tuple[Callable[..., jax.Array], dict[str, jax.Array]]:
    """Returns the call of `jax.nn` as its users write it, and the arrays of a mask that it does not know by name."""
    batch, length = shape[:2]
    options: dict[str, Any] = {"implementation": "cudnn"} if cudnn else {}
    arrays: dict[str, jax.Array] = {}
    if kind == "padded":
        ends = jnp.asarray(valid(shape).sum(1), jnp.int32)
        arrays = {"key_value_seq_lengths": ends, "query_seq_lengths": jnp.full(batch, length, jnp.int32)}
    elif kind == "packed":
        arrays["mask"] = jnp.broadcast_to(mask_of(kind, shape).dense(length, length), (batch, 1, length, length))
    else:
        options["is_causal"] = True
        if kind == "windowed":
            options["local_window_size"] = (window(shape), 0)
    return lambda q, k, v, arrays: jax.nn.dot_product_attention(q, k, v, **options, **arrays), arrays


def _measure_torch(kind: str, shape: tuple[int, ...], settings: Settings) -> Mapping[str, Any]:
    if importlib.util.find_spec("torch") is None:
        raise Refused("PyTorch is not installed")
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    put = lambda x: torch.tensor(x.transpose(0, 2, 1, 3).copy(), dtype=torch.bfloat16, device=device)
    *leaves, upstream = map(put, inputs(shape))
    leaves = [leaf.requires_grad_() for leaf in leaves]
    length, array = shape[1], None
    if kind == "padded":
        array = torch.tensor(valid(shape), device=device)[:, None, None]
    elif kind != "causal":
        array = torch.tensor(np.array(mask_of(kind, shape).dense(length, length)), device=device)
    attend = functools.partial(
        torch.nn.functional.scaled_dot_product_attention, *leaves, attn_mask=array, is_causal=kind == "causal"
    )
    wait = (lambda _: torch.cuda.synchronize()) if device == "cuda" else (lambda _: None)
    output = attend()[0].detach().float().cpu().numpy().transpose(1, 0, 2)
    with torch.no_grad():
        forward = seconds(attend, wait)
    gradient = seconds(lambda: torch.autograd.grad(attend(), leaves, upstream), wait)
    return {"forward": forward, "gradient": gradient, "sample": sample(output)}


def sample(output: np.ndarray) -> list[float]:
    """Returns 16 numbers of an output ``[T, N, J]`` of the first example."""
    return [float(x) for x in output[np.linspace(0, output.shape[0] - 1, 16).astype(int), 0, 0]]


def seconds(call: Callable[[], Any], wait: Callable[[Any], Any], *, rounds: int = 5, least: float = 0.05) -> float:
    """Returns the median time of a call; each of the rounds has as many calls as fill `least` seconds."""
    wait(call())
    began = time.perf_counter()
    wait(call())
    number_of_calls = max(1, min(200, int(least / (time.perf_counter() - began))))
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        result = None
        for _ in range(number_of_calls):
            result = call()
        wait(result)
        times.append((time.perf_counter() - began) / number_of_calls)
    return statistics.median(times)


def table(results: Mapping[str, Any]) -> str:
    """Returns milliseconds by mask, length and side, what is chosen, and the thresholds that would be better."""
    grid = by_shape(results)
    sides = [side for side in (*OURS, *BLOCKS, *THEIRS, TORCH) if any(side in row for row in grid.values())]
    rows: list[list[str]] = [["mask, length", *sides, "chosen", "difference"]]
    for (kind, length), row in in_order(grid):
        cells = ["-"] * len(sides)
        for i, side in enumerate(sides):
            if side in row:
                cells[i] = " / ".join(number(row[side][part], ".3f", factor=1e3) for part in ("forward", "gradient"))
        chosen = next((entry["chosen"] for entry in row.values() if "chosen" in entry), "-")
        samples = np.array([entry["sample"] for entry in row.values()], float)
        spread = float(np.ptp(samples, axis=0).max())
        rows.append([f"{kind} {length:,}", *cells, chosen, f"{spread:.1e}"])
    return aligned(rows) + "\n\n" + "\n".join(proposal(grid))


Grid = Mapping[tuple[str, int], Mapping[str, Mapping[str, Any]]]
"""The results by mask and length, then by side."""


def by_shape(results: Mapping[str, Any]) -> Grid:
    """Returns the results by mask and length, then by side."""
    grid: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for name, result in results.items():
        kind, length, side = name.split(" ", 2)
        grid.setdefault((kind, int(length)), {})[side] = result
    return grid


def in_order(grid: Grid) -> list[tuple[tuple[str, int], Mapping[str, Mapping[str, Any]]]]:
    """Returns the rows by mask, then by length."""
    return sorted(grid.items(), key=lambda item: (KINDS.index(item[0][0]), item[0][1]))


def proposal(grid: Grid, *, margin: float = 1.05) -> list[str]:
    """Returns the shapes at which the choice is not the best of this library, and the threshold of blockwise attention.

    A side's time is that of the gradient, which includes the forward pass. The choice may be `margin` times as slow.
    """
    lines = []
    for (kind, length), row in in_order(grid):
        ours = {side: entry["gradient"] for side, entry in row.items() if side in OURS}
        chosen = next((entry["chosen"] for entry in row.values() if "chosen" in entry), None)
        if not ours or chosen is None:
            continue
        best = min(ours, key=ours.__getitem__)
        if chosen not in ours:
            lines.append(f"{kind} {length:,}: {chosen} is chosen and was not measured; the best is {best}")
        elif ours[chosen] > margin * ours[best]:
            ratio = ours[chosen] / ours[best]
            lines.append(f"{kind} {length:,}: {chosen} is chosen, but {best} is {ratio:.2f} times as fast")
    if grid and not lines:
        lines.append(f"the choice is the best at every shape measured, within {margin - 1:.0%}")
    threshold = blockwise_from(grid)
    if threshold is None:
        return lines
    better = f"blockwise from T S = {threshold:,}" if math.isfinite(threshold) else "reference at every length measured"
    return [*lines, f"of blockwise and reference, the faster is {better} (`LONG` is {api.LONG:,})"]


def blockwise_from(grid: Grid) -> float | None:
    """Returns the least T S from which blockwise attention is as fast as the reference on the geometric mean of masks.

    Infinity if it is slower at the longest; None if no length has both. A length at which the reference does not run
    counts for blockwise.
    """
    faster: dict[int, bool] = {}
    for length in sorted({length for _, length in grid}):
        rows = [row for (_, other), row in grid.items() if other == length and "blockwise" in row]
        ratios = [row["blockwise"]["gradient"] / row["reference"]["gradient"] for row in rows if "reference" in row]
        if rows:
            faster[length] = not ratios or statistics.geometric_mean(ratios) <= 1
    if not any("reference" in row and "blockwise" in row for row in grid.values()):
        return None
    threshold = math.inf
    for length in sorted(faster, reverse=True):
        if not faster[length]:
            break
        threshold = length**2
    return threshold
