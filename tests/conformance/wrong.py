"""An attention in plain NumPy or JAX, and one wrong line at a time, named after the property that finds it."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import conformance, functional

BUGS = {
    # name of the bug: (the property that is meant for it, framework)
    "softmax over the queries": ("weights", "numpy"),
    "no scale": ("scale", "numpy"),
    "scale twice": ("scale", "numpy"),
    "the given scale ignored": ("scale", "numpy"),
    "mask inverted": ("mask", "numpy"),
    "a small negative number masks": ("mask", "numpy"),
    "mask of the first example": ("mask shapes", "numpy"),
    "causal off by one": ("causal", "numpy"),
    "causal from the other end": ("causal, T != S", "numpy"),
    "padding attended": ("padding", "numpy"),
    "padding in a mean": ("padding", "numpy"),
    "window off by one": ("window", "numpy"),
    "segments ignored": ("segments", "numpy"),
    "padding forgotten beside causal": ("masks together", "numpy"),
    "uniform weights for empty rows": ("empty rows", "numpy"),
    "NaN for empty rows": ("empty rows", "numpy"),
    "zero times NaN": ("hidden NaN", "numpy"),
    "a mask that is added to NaN": ("hidden NaN", "numpy"),
    "heads tiled": ("grouped heads", "numpy"),
    "heads mixed": ("heads apart", "numpy"),
    "bias after the softmax": ("bias", "numpy"),
    "bias of the first example": ("bias shapes", "numpy"),
    "narrow sums": ("long rows", "numpy"),
    "no maximum": ("large logits", "numpy"),
    "dropout without a factor": ("dropout", "numpy"),
    "dropout of nothing": ("dropout", "numpy"),
    "a step without its own key": ("cached step", "numpy"),
    "inputs changed": ("inputs kept", "numpy"),
    "float64 returned": ("shape and dtype", "numpy"),
    "a head too many": ("shape and dtype", "numpy"),
    "value rounded": ("values", "numpy"),
    "values as wide as keys": ("value dim", "numpy"),
    "bias without gradient": ("bias gradient", "jax"),
    "gradient of half": ("gradients", "jax"),
    "NaN gradient of empty rows": ("empty rows, gradients", "jax"),
    "NaN gradient of padding": ("hidden NaN, gradients", "jax"),
    "first of a vmap": ("vmap", "jax"),
    "constant gradient": ("second derivatives", "jax"),
    "another number in jit": ("jit", "jax"),
    "another number each time": ("remat", "jax"),
    "bound to a device": ("sharding", "jax"),
}
calls = iter(range(10**9))


def attend(
    query, key, value, *, mask=None, bias=None, is_causal=False, window=None, lengths=None, segments=None, scale=None,
    dropout=None, bug="", np=np,
):  # fmt: skip
    """Returns ``[B, T, N, J]``; right without a bug. `dropout` is (rate, seed)."""
    (_, T, N, H), S, K, dtype = query.shape, key.shape[1], key.shape[2], query.dtype
    if bug == "inputs changed":
        query *= H**-0.5
        scale = 1.0
    if bug == "values as wide as keys":
        value = value[..., :H]
    ahead = np.arange(S) - np.arange(T)[:, None] - (S - T if bug == "causal from the other end" else 0)
    allowed = np.ones((1, 1, T, S), bool)
    if mask is not None:
        mask = mask[:1] if bug == "mask of the first example" else mask
        allowed = allowed & (~mask if bug == "mask inverted" else mask)
    if is_causal:
        allowed = allowed & (ahead < 0 if bug == "causal off by one" else ahead <= 0)
    if window is not None:
        allowed = allowed & (ahead >= -window[0] - (bug == "window off by one")) & (ahead <= window[1])
    if segments is not None and bug != "segments ignored":
        allowed = allowed & (segments[0][:, :, None] == segments[1][:, None])[:, None]
    if (
        lengths is not None
        and bug != "padding attended"
        and (bug != "padding forgotten beside causal" or not is_causal)
    ):
        allowed = allowed & (np.arange(S) < lengths[:, None])[:, None, None]
    if bug == "a step without its own key" and T == 1 and S > 1:
        allowed = allowed & (np.arange(S) < (S if lengths is None else lengths[:, None, None, None]) - 1)
    if bug == "padding in a mean":
        value = value - value.mean(1, keepdims=True) * np.float32(1e-3).astype(dtype)
    repeat = (lambda x: np.tile(x, (1, 1, N // K, 1))) if bug == "heads tiled" else lambda x: np.repeat(x, N // K, 2)
    query, key, value = query.astype(np.float32), repeat(key).astype(np.float32), repeat(value).astype(np.float32)
    seen = np.broadcast_to(allowed.any(2), (len(query), N, S)).swapaxes(1, 2)[..., None]
    some = np.broadcast_to(allowed.any(3), (len(query), N, T)).swapaxes(1, 2)[..., None]
    query = np.where(some, query, 0)
    if bug not in ("zero times NaN", "NaN gradient of padding"):
        value = np.where(seen, value, 0)
    if bug not in ("a mask that is added to NaN", "NaN gradient of padding"):
        key = np.where(seen, key, 0)
    logits = np.einsum("btnh,bsnh->bnts", query, key)
    factor = H**-0.5 if scale is None or bug == "the given scale ignored" else scale
    logits = logits * {"no scale": 1.0, "scale twice": factor**2}.get(bug, factor)
    if bias is not None and bug != "bias after the softmax":
        bias = jax.lax.stop_gradient(bias) if bug == "bias without gradient" else bias
        logits = logits + (bias[:1] if bug == "bias of the first example" else bias)
    added = {"a mask that is added to NaN": -1e30, "a small negative number masks": -1e4}
    if bug in (*added, "NaN gradient of empty rows"):
        logits = logits + np.where(allowed, 0, added.get(bug, -np.inf))
    else:
        logits = np.where(allowed, logits, -1e30 if bug == "uniform weights for empty rows" else -np.inf)
    axis = -2 if bug == "softmax over the queries" else -1
    top = 0 if bug == "no maximum" else logits.max(axis, keepdims=True)
    if bug != "NaN for empty rows":
        top = np.where(top == -np.inf, 0, top)
    weights = np.exp(logits - top)
    if bug == "narrow sums":
        total = np.cumsum(weights.astype(dtype), axis, dtype=dtype)[..., -1:].astype(np.float32)
    else:
        total = weights.sum(axis, keepdims=True)
    if bug == "NaN gradient of empty rows":
        weights = np.where(total == 0, 0, weights / total)
    else:
        weights = weights / (total if bug == "NaN for empty rows" else np.where(total == 0, 1, total))
    if bias is not None and bug == "bias after the softmax":
        weights = weights + bias
    if dropout is not None:
        rate, seed = dropout
        kept = np.random.default_rng(seed).random(weights.shape) >= (0 if bug == "dropout of nothing" else rate)
        weights = weights * kept / (1 if bug in ("dropout without a factor", "dropout of nothing") else 1 - rate)
    output = np.einsum("bnts,bsnj->btnj", weights, value)
    return finished(output, weights, dtype, bug)


def finished(output, weights, dtype, bug):
    """The last lines: what they get wrong is of the whole result."""
    match bug:
        case "heads mixed":
            B, T, N, J = output.shape
            output = output.swapaxes(1, 2).reshape(B, T, N, J)
        case "value rounded":
            output = output.round(2)
        case "a head too many":
            output = np.concatenate([output, output[:, :, :1]], 2)
        case "float64 returned":
            dtype = np.float64
        case "gradient of half" | "constant gradient" | "first of a vmap":
            output = {"gradient of half": halved, "constant gradient": flat, "first of a vmap": first}[bug](output)
        case "another number in jit":
            output = output * (2 if isinstance(output, jax.core.Tracer) else 1)
        case "another number each time":
            output = output * (1 + next(calls))
        case "bound to a device":
            other = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
            if isinstance(output, jax.core.Tracer) and len(jax.devices()) > 1:
                output = jax.lax.with_sharding_constraint(output, other)
    return output.astype(dtype)


@jax.custom_vjp
def halved(x):
    return x


halved.defvjp(lambda x: (x, None), lambda _, upstream: (0.5 * upstream,))


@jax.custom_jvp
def flat(x):
    """Its derivative is a number to JAX, not a function of x."""
    return x**2


flat.defjvp(lambda x, dx: (x[0] ** 2, 2 * jax.lax.stop_gradient(x[0]) * dx[0]))


@jax.custom_batching.custom_vmap
def first(x):
    return x


first.def_vmap(lambda size, batched, x: (jnp.broadcast_to(x[:1], x.shape), True))


def attend_in_jax(*inputs, **options):
    """The settings are made here because a property runs in a thread of its own."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return attend(*inputs, **options, np=jnp)


def hangs(query, key, value):
    while True:
        time.sleep(0.01)


def raises(query, key, value):
    raise RuntimeError("no such kernel\nand a long story")


def numpy_attend(query, key, value, *, mask=None):
    """A function that a user could name: only a mask, and NaN for empty rows."""
    return attend(query, key, value, mask=mask, bug="NaN for empty rows")


def subject(bug, framework="numpy"):
    """Returns the function with a bug, and the fields of its adapter."""
    function = functools.partial({"numpy": attend, "jax": attend_in_jax}[framework], bug=bug)
    names = ("mask", "bias", "window", "lengths", "segments", "scale")
    fields = {"framework": framework, "dtypes": ("float32", "float16"), "causal": "is_causal"}
    fields |= {name: name for name in names}
    if framework == "numpy":
        fields |= {"grouped": True, "value_dim": True}
        fields["dropout"] = lambda rate, seed: {"dropout": (rate, seed)}
    return function, fields


ADAPTER = conformance.adapt(numpy_attend, framework="numpy", name="tests.conformance.wrong:numpy_attend")


def of_framework(framework):
    """Returns the names of the properties whose bugs are planted in functions of a framework."""
    return [name for name, where in dict(BUGS.values()).items() if where == framework]


def found(bug):
    """Checks that a bug is found by the property that is meant for it; returns what was found."""
    name, framework = BUGS[bug]
    function, fields = subject(bug, framework)
    (row,) = conformance.check(function, only=[name], shrink=False, **fields).rows
    assert row.status == "failed", row
    assert row.finding
    return row.finding


def attend_right(framework, names):
    """Returns the report of a function without a bug."""
    function, fields = subject("", framework)
    return conformance.check(function, only=names, **fields)


@jax.custom_batching.custom_vmap
def zero_in_vmap(query, key, value, allowed):
    return functional.attention(query, key, value, mask=allowed)


zero_in_vmap.def_vmap(lambda size, batched, query, key, value, allowed: (jnp.zeros_like(query), True))


def masked_in_vmap(query, key, value, *, mask=None, **options):
    """A function of a mask of this library, wrong in `jax.vmap` with one."""
    if mask is None:
        return functional.attention(query, key, value, **options)
    return zero_in_vmap(query, key, value, mask.dense(query.shape[1], key.shape[1]))
