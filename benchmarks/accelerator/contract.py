"""Part 1: the attention contract on the device, for every implementation and dtype, against float64.

Each case computes outputs and gradients under several masks and compares them with NumPy in float64 on the same
rounded inputs. It also checks the laws of `jaxformer.masks`: empty rows give zeros, unseen keys are inert, masked
weights are 0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator.record import Case, Refused, Settings, aligned, number
from jaxformer import functional, masks
from jaxformer.functional.attention.api import implementations
from jaxformer.functional.attention.base import make_request

TITLE = "Part 1: the attention contract"
IMPLEMENTATIONS = ("cudnn", "blockwise", "tokamax", "splash", "xla", "reference")
DTYPES = ("bfloat16", "float32", "float16")
TOLERANCE = {"bfloat16": 0.03, "float16": 5e-3, "float32": 5e-3}
"""The largest error of an output that is accepted; gradients may have four times as much. On an accelerator the
matrix products of float32 have fewer bits (TF32 on a GPU)."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a case: the legend is that of CONTRIBUTING.md."""

    B: int = 2
    T: int = 256
    N: int = 4
    K: int = 2
    H: int = 64


TINY = Sizes(T=16, N=2, K=1, H=8)
FEW = ("none", "causal and padding", "dense")
"""The masks of the tiny mode."""


def cases(settings: Settings) -> list[Case]:
    """Returns a case for each implementation and dtype, and one for each explained shape."""
    sizes = TINY if settings.tiny else Sizes()
    found = [
        Case(f"{name} {dtype}", functools.partial(_contract, name, dtype, sizes), seconds=25)
        for dtype in DTYPES
        for name in IMPLEMENTATIONS
    ]
    shapes = [(text, functools.partial(_explanation, text, settings.tiny)) for text in SHAPES]
    return found + [Case(f"explain {text}", run, seconds=20) for text, run in shapes]


def _masks(sizes: Sizes) -> dict[str, masks.Mask | None]:
    """Returns the masks of a case; padding leaves the last quarter of one example, and some queries have no key."""
    length = np.arange(sizes.T)
    valid = length[None] < np.array([[sizes.T], [sizes.T * 3 // 4]])
    some = np.random.default_rng(9).random((sizes.B, 1, sizes.T, sizes.T)) > 0.4
    some[:, :, 1::7] = False
    return {
        "none": None,
        "causal": masks.causal(),
        "padding": masks.padding(valid),
        "window": masks.window(sizes.T // 8),
        "causal and padding": masks.causal() & masks.padding(valid),
        "packed": masks.causal() & masks.segments(np.broadcast_to(length * 4 // sizes.T, (sizes.B, sizes.T))),
        "dense": masks.dense(some),
    }


def _contract(name: str, dtype: str, sizes: Sizes, settings: Settings) -> Mapping[str, Any]:
    query, key, value, upstream = arrays(sizes, dtype)
    tolerance = TOLERANCE[dtype] if jax.default_backend() != "cpu" or dtype != "float32" else 2e-5
    worst: dict[str, tuple[float, str]] = {"output": (0.0, ""), "gradient": (0.0, "")}
    broken, refused = list[str](), dict[str, str]()
    chosen = {label: mask for label, mask in _masks(sizes).items() if sizes != TINY or label in FEW}
    for label, mask in chosen.items():
        if reason := implementations[name].refuse(make_request(query, key, value, mask=mask)):
            refused[label] = reason
            continue
        program = jax.jit(functools.partial(_both, name))
        got = program(query, key, value, upstream, mask)
        allowed = np.ones((1, 1, sizes.T, sizes.T), bool) if mask is None else np.asarray(mask.dense(sizes.T, sizes.T))
        expected = exact(query, key, value, upstream, np.broadcast_to(allowed, (sizes.B, sizes.N, sizes.T, sizes.T)))
        for kind, error in errors(got, expected).items():
            if not error <= worst[kind][0]:  # NaN, too
                worst[kind] = error, label
            if not error <= tolerance * (4 if kind == "gradient" else 1):
                broken.append(f"{label}: error of the {kind} {error:.1e}")
        broken += [f"{label}: {law}" for law in _laws(program, (query, key, value, upstream), mask, got, allowed)]
    if len(refused) == len(chosen):
        raise Refused(next(iter(refused.values())))
    results = {kind: {"error": error, "mask": label} for kind, (error, label) in worst.items()}
    return {**results, "broken": broken, "refused": refused}


def arrays(sizes: Sizes, dtype: str) -> list[jax.Array]:
    """Returns query, key, value and an upstream gradient."""
    draw = np.random.default_rng(0).standard_normal
    heads = (sizes.N, sizes.K, sizes.K, sizes.N)
    return [jnp.asarray(draw((sizes.B, sizes.T, number, sizes.H)), dtype) for number in heads]


def _both(name: str, query: Any, key: Any, value: Any, upstream: Any, mask: Any) -> tuple[jax.Array, ...]:
    """Returns the output of an implementation, and the gradients with respect to query, key and value."""
    attend = lambda q, k, v: functional.attention(q, k, v, mask=mask, implementation=name)
    output, pull = jax.vjp(attend, query, key, value)
    return output, *pull(upstream)


def exact(query: Any, key: Any, value: Any, upstream: Any, allowed: np.ndarray) -> list[np.ndarray]:
    """Returns output and gradients in float64.

    With p the weights and y = p v: dv = p^T dy, dp = dy v^T, ds = p (dp - sum_s p dp), dq = scale ds k and
    dk = scale ds^T q.
    """
    query, key, value, upstream = (np.asarray(x).astype(np.float64) for x in (query, key, value, upstream))
    group = query.shape[2] // key.shape[2]
    key, value = (np.repeat(x, group, axis=2) for x in (key, value))
    scale = query.shape[3] ** -0.5
    logits = np.where(allowed, np.einsum("btnh,bsnh->bnts", query, key) * scale, -np.inf)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0))
    weights /= np.maximum(weights.sum(-1, keepdims=True), np.finfo(np.float64).tiny)
    output = np.einsum("bnts,bsnj->btnj", weights, value)
    slope = np.einsum("btnj,bsnj->bnts", upstream, value)
    slope = scale * weights * (slope - (weights * slope).sum(-1, keepdims=True))
    shared = lambda x: x.reshape(*x.shape[:2], -1, group, x.shape[3]).sum(3)
    d_value = shared(np.einsum("bnts,btnj->bsnj", weights, upstream))
    d_key = shared(np.einsum("bnts,btnh->bsnh", slope, query))
    return [output, np.einsum("bnts,bsnh->btnh", slope, key), d_key, d_value]


def errors(got: Any, expected: list[np.ndarray]) -> dict[str, float]:
    """Returns the largest errors of the output and of the gradients."""
    each = [float(np.abs(np.asarray(a).astype(np.float64) - b).max()) for a, b in zip(got, expected, strict=True)]
    return {"output": each[0], "gradient": float(np.max(each[1:]))}


def _laws(program: Any, inputs: Any, mask: Any, got: Any, allowed: np.ndarray) -> list[str]:
    """Returns the laws of the empty-row contract that an implementation breaks, in words."""
    if mask is None:
        return []
    query, key, value, upstream = inputs
    broken = []
    batch = query.shape[0]
    empty = np.broadcast_to(~allowed.any((1, 3)), (batch, query.shape[1]))  # [B, T], for all heads alike
    unseen = np.broadcast_to(~allowed.any((1, 2)), (batch, key.shape[1]))
    output, d_query, d_key, d_value = (np.asarray(x).astype(np.float32) for x in got)
    if output[empty].any() or d_query[empty].any():
        broken.append("a query without keys has an output or a gradient that is not 0")
    if d_key[unseen].any() or d_value[unseen].any():
        broken.append("an unseen key has a gradient that is not 0")
    same = lambda other: all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(got, other, strict=True))
    if unseen.any():
        dirty = (jnp.where(unseen[:, :, None, None], jnp.asarray(jnp.nan, x.dtype), x) for x in (key, value))
        again = program(query, *dirty, upstream, mask)
        # The sums of a gradient may have another order, and so other last bits, in each run of a program.
        repeatable = same(program(*inputs, mask))
        if (repeatable and not same(again)) or any(np.isnan(np.asarray(x).astype(np.float32)).any() for x in again):
            broken.append("NaN in an unseen key changes a result")
    dim = query.shape[3]
    columns = slice(0, dim)  # weights are the output for values that are unit vectors; as many as the head dim has
    units = jnp.zeros(value.shape, value.dtype).at[:, columns].set(jnp.eye(dim, dtype=value.dtype)[None, :, None])
    weights = np.asarray(program(query, key, units, upstream, mask)[0]).astype(np.float32).swapaxes(1, 2)
    if weights[np.broadcast_to(~allowed[..., columns], weights.shape)].any():
        broken.append("a masked weight is not 0")
    return broken


SHAPES: dict[str, tuple[Sizes, str, str]] = {
    "8 x 512 causal bfloat16": (Sizes(8, 512, 8, 8, 64), "causal", "bfloat16"),
    "2 x 1024 causal bfloat16": (Sizes(2, 1024, 8, 8, 64), "causal", "bfloat16"),
    "2 x 1024 padding bfloat16": (Sizes(2, 1024, 8, 8, 64), "padding", "bfloat16"),
    "2 x 1024 window bfloat16": (Sizes(2, 1024, 8, 8, 64), "window", "bfloat16"),
    "2 x 1024 packed bfloat16": (Sizes(2, 1024, 8, 8, 64), "packed", "bfloat16"),
    "2 x 1024 causal grouped bfloat16": (Sizes(2, 1024, 8, 2, 64), "causal", "bfloat16"),
    "2 x 512 causal head dim 128 bfloat16": (Sizes(2, 512, 8, 8, 128), "causal", "bfloat16"),
    "2 x 512 causal head dim 256 bfloat16": (Sizes(2, 512, 4, 4, 256), "causal", "bfloat16"),
    "2 x 512 causal float16": (Sizes(2, 512, 8, 8, 64), "causal", "float16"),
    "2 x 512 causal float32": (Sizes(2, 512, 8, 8, 64), "causal", "float32"),
}
"""The shapes that are explained: sizes, mask, dtype."""


def _explanation(text: str, tiny: bool, settings: Settings) -> Mapping[str, Any]:
    sizes, label, dtype = SHAPES[text]
    if tiny:
        sizes = dataclasses.replace(sizes, B=2, T=16)
    two = dataclasses.replace(sizes, B=2)
    mask = _masks(two)[label]  # masks of arrays have two examples
    query, key, value, _ = arrays(sizes, dtype)
    found = functional.explain_attention(query, key, value, mask=mask)
    return {"chosen": found.chosen, "errors": found.errors, "refused": found.refused}


def table(results: Mapping[str, Any]) -> str:
    """Returns a table of errors and findings, and the explanations."""
    rows: list[tuple[object, ...]] = [("implementation, dtype", "output", "gradient", "worst mask", "finding")]
    for name, result in results.items():
        if "chosen" not in result:
            output, gradient = result["output"], result["gradient"]
            finding = "; ".join(result["broken"]) or "holds"
            if result["refused"]:
                finding += f" (refuses {', '.join(result['refused'])})"
            shown = (number(x["error"], ".1e") for x in (output, gradient))
            rows.append((name, *shown, gradient["mask"], finding))
    explained: list[tuple[object, ...]] = [("shape", "chosen", "errors")]
    for name, result in results.items():
        if "chosen" in result:
            shown = ", ".join(f"{kind} {number(error, '.1e')}" for kind, error in result["errors"].items())
            explained.append((name.removeprefix("explain "), result["chosen"], shown))
    return "\n\n".join(aligned(part) for part in (rows, explained) if len(part) > 1)
