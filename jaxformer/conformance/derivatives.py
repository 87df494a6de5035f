"""The properties of gradients, and of the transformations of JAX."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.conformance.adapter import NotOfferedError, Request
from jaxformer.conformance.results import biased, dirty, empty, if_dtype_taken, if_shape_taken
from jaxformer.conformance.trials import Outcome, Sizes, Subject, coin, distance, draw, draw_upstream, prop, shaped


def _compare(subject: Subject, request: Request, names: tuple[str, ...] = ("query", "key", "value")) -> Outcome:
    slopes, upstream = subject.slopes(request)
    exact = subject.exact_slopes(request, upstream)
    errors = {name: distance(slopes[name], exact[name]) for name in names}
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] <= 4 * subject.limit(request):
        return Outcome(errors[worst])
    got, want = (np.asarray(x[worst], np.float64) for x in (slopes, exact))
    failure = f"the gradient of the {worst} differs from float64 by {errors[worst]:.2g}"
    if got.shape == want.shape and np.isfinite(got).all():
        factor = float((got * want).sum() / max((want * want).sum(), 1e-30))
        if distance(got, factor * want) <= 4 * subject.limit(request):
            failure += f"; it is {factor:.3g} times the right one"
    return Outcome(errors[worst], failure, request, "gradients")


@prop("gradients", "float32", "bfloat16", "masked")
def gradients(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The gradients of queries, keys and values are those of float64."""
    if label == "masked":
        request = draw(sizes)
        return _compare(subject, request.but(mask=coin(*shaped("B1TS", request))))
    return if_dtype_taken(subject, label, lambda: _compare(subject, draw(sizes, label)))


@prop("bias gradient", "BNTS", "1NTS", "B11S", "11T1", "minus infinity")
def bias_gradient(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The gradient of a bias is that of float64, summed over the dimensions in which it broadcasts."""
    request = biased(draw(sizes), "BNTS" if label == "minus infinity" else label)
    if label == "minus infinity":
        assert request.bias is not None
        masked = np.where(coin(*request.bias.shape), request.bias, -np.inf)
        return _compare(subject, request.but(bias=masked.astype(np.float32)), ("bias", "query", "key", "value"))
    return if_shape_taken(subject, label, lambda: _compare(subject, request, ("bias",)))


@prop("empty rows, gradients", "by a mask", "by a length of 0")
def empty_gradients(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """A query without keys leaves all gradients finite, and its own is 0."""
    request = empty(draw(sizes), label)
    slopes, upstream = subject.slopes(request)
    exact = subject.exact_slopes(request, upstream)
    for name in exact:
        got = np.asarray(slopes[name], np.float64)
        if not np.isfinite(got).all():
            return Outcome(np.inf, f"the gradient of the {name} is not finite", request, "gradients")
    change = "the gradient of the query differs from float64"
    return subject.near(slopes["query"], exact["query"], request, change, times=4, of="gradients")


@prop("hidden NaN, gradients", "NaN in keys and values", "infinity in keys and values", "NaN in an empty query")
def hidden_nan_gradients(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """NaN and infinity in padding, and in a query without keys, change not one bit of a gradient."""
    clean, request = dirty(draw(sizes), label)
    (slopes, _), (expected, _) = subject.slopes(request), subject.slopes(clean)
    errors = {name: distance(slopes[name], expected[name]) for name in expected}
    worst = max(errors, key=lambda name: errors[name])
    failure = f"it reaches the gradient of the {worst}" if errors[worst] else ""
    return Outcome(errors[worst], failure, request, "gradients")


@prop("second derivatives", "reverse over reverse", "forward over reverse")
def second_derivatives(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The gradient can be differentiated: products with the Hessian are differences of gradients in float64."""
    request = _masked(subject, draw(sizes))
    if subject.adapter.framework == "torch" and label == "forward over reverse":
        raise NotOfferedError("it is tried in reverse mode only")
    names, random = ("query", "key", "value"), np.random.default_rng(3)
    along = {name: random.standard_normal(getattr(request, name).shape).astype(np.float32) for name in names}
    upstream = draw_upstream(request)
    found = subject.engine.curve(request, upstream, along, label)
    wide = {name: np.asarray(getattr(request, name), np.float64) for name in names}
    step = 1e-5
    ends = [
        subject.exact_slopes(request.but(**{name: x + s * along[name] for name, x in wide.items()}), upstream)
        for s in (step, -step)
    ]
    errors = {name: distance(found[name], (ends[0][name] - ends[1][name]) / (2 * step)) for name in names}
    worst = max(errors, key=lambda name: errors[name])
    failure = ""
    if errors[worst] > 40 * subject.limit(request):
        failure = f"the derivative of the gradient of the {worst} is wrong by {errors[worst]:.2g}"
    return Outcome(errors[worst], failure, request, "gradients")


def _masked(subject: Subject, request: Request) -> Request:
    """Returns the request with a mask, if the function takes one."""
    if subject.adapter.mask is None:
        return request
    return request.but(mask=coin(*shaped("B1TS", request)))


@prop("jit")
def jit(subject: Subject, sizes: Sizes) -> Outcome:
    """The function computes the same in `jax.jit` as outside."""
    engine, request = subject.jax("this"), _masked(subject, draw(sizes))
    arrays, others = engine.split(request)
    call = engine.called(others)
    plain = call(arrays)
    return subject.near(jax.jit(call)(arrays), plain, request, "differs from the result outside")


@prop("vmap", "output", "gradients")
def vmap(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """`jax.vmap` of the function, or of its gradient, computes the same as a loop."""
    engine, request = subject.jax("this"), _masked(subject, draw(sizes))
    arrays, others = engine.split(request)
    call: Any = engine.called(others)
    if label == "gradients":
        variables = [name for name in arrays if name[0] == "*"]
        loss = lambda v, a, call=call: jnp.square(call({**a, **v}).astype(jnp.float32)).sum()
        split = lambda a: ({name: a[name] for name in variables}, {n: x for n, x in a.items() if n not in variables})
        call = lambda a: jax.grad(loss)(*split(a))
    moved = {name: [x, -x if name[0] == "*" else x] for name, x in arrays.items()}
    stacked = {name: jax.tree.map(lambda *x: jnp.stack(x), *pair) for name, pair in moved.items()}
    together = engine.run(jax.vmap(call), stacked)
    alone = [engine.run(call, {name: pair[i] for name, pair in moved.items()}) for i in range(2)]
    expected = jax.tree.map(lambda *x: np.stack(x), *alone)
    return subject.near(together, expected, request, "differs from a loop", times=4, of=label)


@prop("remat")
def remat(subject: Subject, sizes: Sizes) -> Outcome:
    """Gradients are the same if `jax.checkpoint` computes the function again in the backward pass."""
    engine, request = subject.jax("this"), _masked(subject, draw(sizes))
    loss, variables, arrays = engine.loss(request, draw_upstream(request))
    got, want = (engine.run(jax.grad(f), variables, arrays) for f in (jax.checkpoint(loss), loss))
    return subject.near(got, want, request, "changes under jax.checkpoint", times=4, of="gradients")


@prop("sharding", "batch", "heads")
def sharding(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """Arrays that two devices share, by examples or by heads, give the same result; the note counts what they send."""
    engine, request = subject.jax("a mesh"), draw(sizes)
    if len(jax.devices()) < 2:
        raise NotOfferedError("there is one device")
    axis = subject.adapter.layout.index({"batch": "B", "heads": "N"}[label])
    if request.query.shape["BTNH".index(subject.adapter.layout[axis])] % 2:
        return Outcome()
    arrays, others = engine.split(request)
    mesh = Mesh(np.array(jax.devices()[:2]), ("shared",))
    placement = NamedSharding(mesh, PartitionSpec(*(["shared" if i == axis else None for i in range(4)])))
    program = jax.jit(engine.called(others)).lower(jax.device_put(arrays, placement)).compile()
    shared = program(jax.device_put(arrays, placement))
    outcome = subject.near(shared, subject.output(request), request, "differs from one device")
    text = program.as_text() or ""
    sent = [name for name in ("all-gather", "all-reduce", "all-to-all", "collective-permute") if name in text]
    return dataclasses.replace(outcome, note=f"devices send {', '.join(sent)}" * bool(sent))
