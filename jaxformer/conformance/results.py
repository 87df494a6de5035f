"""The properties of the output of attention, each with its trials; `derivatives` has those of gradients and of JAX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxformer.conformance import oracle
from jaxformer.conformance.adapter import NotOfferedError, Request
from jaxformer.conformance.trials import (
    BrokenError,
    Outcome,
    Sizes,
    Subject,
    coin,
    distance,
    draw,
    prop,
    shaped,
)
from jaxformer.errors import first_line

DTYPES = ("float32", "bfloat16", "float16")


def if_taken(what: str, declared: bool | None, trial: Callable[[], Outcome]) -> Outcome:
    """Returns the outcome of a trial; if it is not declared what a function takes, an error means that it does not."""
    if declared is False:
        raise NotOfferedError(f"it takes no {what}")
    try:
        return trial()
    except Exception as error:
        if declared or isinstance(error, NotOfferedError | BrokenError):
            raise
        raise NotOfferedError(f"it refuses {what}: {first_line(error, 80)}") from error


def if_shape_taken(subject: Subject, letters: str, trial: Callable[[], Outcome]) -> Outcome:
    """Runs a trial of a shape of a mask or a bias."""
    shapes = subject.adapter.mask_shapes
    return if_taken(f"[{', '.join(letters)}]", letters in shapes if shapes else letters == "BNTS" or None, trial)


def if_dtype_taken(subject: Subject, dtype: str, trial: Callable[[], Outcome]) -> Outcome:
    """Runs a trial of a dtype."""
    dtypes = subject.adapter.dtypes
    return if_taken(dtype, dtype in dtypes if dtypes else dtype == "float32" or None, trial)


@prop("values", *DTYPES)
def values(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The output is that of float64, within some roundings of the dtype."""
    return if_dtype_taken(subject, label, lambda: subject.compare(draw(sizes, label)))


@prop("shape and dtype", *DTYPES)
def shape_and_dtype(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The result is [B, T, N, J] and has the dtype of the queries."""
    request = draw(sizes, label)

    def trial() -> Outcome:
        result = subject.output(request)
        wrong = result.dtype != request.query.dtype
        return Outcome(0.0, f"returns {result.dtype} for {label}" if wrong else "", request)

    return if_dtype_taken(subject, label, trial)


@prop("inputs kept")
def inputs_kept(subject: Subject, sizes: Sizes) -> Outcome:
    """The call changes no array that it is given."""
    if subject.adapter.framework == "jax":
        raise NotOfferedError("arrays of JAX cannot be changed")
    request = draw(sizes)
    subject.output(request)
    changed = subject.engine.changed
    if not changed and subject.adapter.mask:
        request = request.but(mask=coin(*shaped("B1TS", request)))
        subject.output(request)
        changed = subject.engine.changed
    return Outcome(0.0, f"changes its argument {changed}" if changed else "", request)


@prop("weights", "sum to one", "one key")
def weights(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The weights of a query sum to one: equal values come back as they are, and so does a single one."""
    request = draw(sizes)
    if label == "one key":
        request = request.but(key=request.key[:, :1], value=request.value[:, :1])
        return subject.compare(request)
    request = request.but(value=np.ones_like(request.value))
    change = "equal values of 1 do not give 1, but differ"
    return subject.near(subject.output(request), subject.expected(request), request, change)


@prop("scale", "default", "given")
def scale(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The logits are divided by the square root of the head dim, or multiplied by the scale that is given."""
    request = draw(sizes)
    if label == "given":
        request = request.but(scale=0.7)
    root = request.query.shape[3] ** 0.5
    tried = {"no scale": 1.0, "the scale twice, 1 / H": root**-2, "the default scale": 1 / root}
    others = {name: lambda s=s: subject.expected(request, scale=s) for name, s in tried.items()}
    return subject.compare(request, others)


@prop("heads apart", "heads", "examples")
def heads_apart(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The output of a head of an example depends on no other head or example."""
    request = draw(sizes)
    axis = {"heads": 2, "examples": 0}[label]
    if request.query.shape[axis] < 2:
        return Outcome()
    arrays = {name: getattr(request, name).copy() for name in ("query", "key", "value")}
    for x in arrays.values():
        np.moveaxis(x, axis, 0)[0] *= -2
    before, after = (np.moveaxis(subject.output(x), axis, 0)[1:] for x in (request, request.but(**arrays)))
    return subject.near(after, before, request, f"others of the {label} change the output")


@prop("large logits")
def large_logits(subject: Subject, sizes: Sizes) -> Outcome:
    """Logits of a thousand neither overflow nor lose the largest."""
    request = draw(sizes)
    return subject.compare(request.but(query=30 * request.query, key=30 * request.key))


@prop("long rows", *DTYPES, sizes=Sizes(B=1, T=1, S=3000, N=1, K=1, H=2, J=2))
def long_rows(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """The sums over 3000 equal keys are those of float32: in bfloat16 a sum of ones ends at 256."""
    request = draw(sizes, label)
    ones = {"query": 0 * request.query, "key": 0 * request.key, "value": request.value * 0 + 1}
    request = request.but(**{name: np.asarray(x, request.query.dtype) for name, x in ones.items()})
    limit = max(1e-4, subject.limit(request))
    return if_dtype_taken(subject, label, lambda: subject.compare(request, limit=limit))


def _inverted(subject: Subject, request: Request) -> dict:
    inverted = None if request.mask is None else ~request.mask
    return {"the inverted mask": lambda: subject.expected(request.but(mask=inverted))}


@prop("mask", "any", "block-sparse", "a loud masked key")
def mask(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """A masked pair has weight 0, whatever its logit."""
    request = draw(sizes)
    allowed = coin(*shaped("BNTS", request))
    if label == "block-sparse":
        rows, columns = np.arange(request.sizes[0])[:, None] // 2, np.arange(request.sizes[1]) // 2
        allowed = np.broadcast_to((rows + columns) % 2 == 0, shaped("BNTS", request)).copy()
        allowed[..., -1] |= ~allowed.any(-1)
    if label == "a loud masked key":
        allowed[..., 0] = False
        allowed[:, :, :1, 0] = True  # a key that no query sees is another matter: "hidden NaN"
        loud = request.key.copy()
        loud[:, 0] *= 1e5  # more than the number that some functions add, such as -10,000
        request = request.but(key=loud)
    request = request.but(mask=allowed)
    return subject.compare(request, _inverted(subject, request))


SHAPES = ("BNTS", "1NTS", "B1TS", "11TS", "B11S", "111S", "TS")


@prop("mask shapes", *SHAPES)
def mask_shapes(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """A mask broadcasts to [B, N, T, S]; a shape may be refused with an error, but not be read in another way."""
    request = draw(sizes)
    request = request.but(mask=coin(*shaped(label, request)))
    return if_shape_taken(subject, label, lambda: subject.compare(request, _inverted(subject, request)))


@prop("causal", "T = S")
def causal(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """Query t attends to keys 0 to t."""
    request = square(draw(sizes)).but(causal=True)
    length = request.sizes[0]
    ahead = np.arange(length) - np.arange(length)[:, None]
    others = {
        "a mask that hides the diagonal, too": lambda: subject.expected(request, allowed=ahead < 0),
        "a mask of one key more": lambda: subject.expected(request, allowed=ahead <= 1),
        "no mask": lambda: subject.expected(request, allowed=None),
    }
    return subject.compare(request, others)


@prop("causal, T != S", "T < S", "T > S")
def causal_of_other_lengths(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """A causal mask of fewer queries than keys, or more, begins where the adapter says; no empty rows are met."""
    request = draw(sizes).but(causal=True)
    if label == "T > S":
        few = max(1, request.sizes[0] - 2)
        request = request.but(key=request.key[:, :few], value=request.value[:, :few])
        if subject.adapter.causal_from == "last":
            raise NotOfferedError("causal from the last key, the first queries have no keys")
    other = "first" if subject.adapter.causal_from == "last" else "last"
    from_other = lambda: subject.expected(request, allowed=request.allowed(other))
    return subject.compare(request, {f"causal_from={other!r}": from_other})


def square(request: Request) -> Request:
    """Returns the request with as many queries as keys."""
    length = min(request.sizes)
    return request.but(**{name: getattr(request, name)[:, :length] for name in ("query", "key", "value")})


def _lengths(request: Request) -> np.ndarray:
    batch, num_keys = len(request.key), request.sizes[1]
    return np.maximum(1, num_keys - 1 - 2 * np.arange(batch)).astype(np.int32)


@prop("padding", "values", "what it holds")
def padding(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """Keys beyond the length of an example have no effect, not one bit, whatever they hold."""
    request = draw(sizes)
    request = request.but(lengths=_lengths(request))
    if label == "values":
        no_mask = lambda: subject.expected(request.but(lengths=None))
        return subject.compare(request, {"no mask": no_mask})
    dirty = request.but(**{name: planted(request, name, 100.0) for name in ("key", "value")})
    change = "other numbers in the padding change the output"
    return subject.near(subject.output(dirty), subject.output(request), dirty, change, times=0)


def planted(request: Request, name: str, fill: float) -> np.ndarray:
    """Returns keys or values, with a number at the padding."""
    assert request.lengths is not None
    hidden = np.arange(request.sizes[1]) >= request.lengths[:, None]
    return np.where(hidden[..., None, None], np.asarray(fill, request.key.dtype), getattr(request, name))


@prop("window", "before", "both sides")
def window(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """Query t attends to this many keys before it and after it, and to key t."""
    request = square(draw(sizes))
    before, after = {"before": (2, 0), "both sides": (1, 1)}[label]
    tried = [(before + i, after + j) for i, j in ((-1, 0), (1, 0), (-1, -1), (1, 1)) if after + j >= 0]
    others = {
        f"a window of {other}": lambda other=other: subject.expected(request.but(window=other)) for other in tried
    }
    request = request.but(window=(before, after))
    return subject.compare(request, others | {"no window": lambda: subject.expected(request.but(window=None))})


@prop("segments")
def segments(subject: Subject, sizes: Sizes) -> Outcome:
    """A query attends to the keys of its own segment, as in packed rows."""
    request = square(draw(sizes))
    rows = np.stack([np.arange(request.sizes[0]) // (2 + b) for b in range(len(request.query))]).astype(np.int32)
    request = request.but(segments=(rows, rows))
    return subject.compare(request, {"no segments": lambda: subject.expected(request.but(segments=None))})


@prop("masks together", "causal and padding", "mask and padding", "causal and mask")
def masks_together(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """Each of several masks hides what it hides alone."""
    request = draw(sizes)
    if "padding" in label:
        request = request.but(lengths=_lengths(request))
    if "causal" in label:
        request = request.but(causal=True)
    if "mask" in label:
        allowed = coin(*shaped("B1TS", request))
        allowed[..., 0] = True  # so that no row is empty
        request = request.but(mask=allowed)
    return subject.compare(request)


@prop("empty rows", "by a mask", "by a length of 0")
def empty_rows(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """A query that may attend to no key gets zeros, and other queries what they got before."""
    request = empty(draw(sizes), label)
    got, want = subject.output(request), subject.expected(request)
    error, hidden = distance(got, want), ~np.moveaxis(request.allowed().any(3), 1, 2)
    if error <= subject.limit(request):
        exact = not got[hidden].any()
        return Outcome(error, "" if exact else "a query without keys gets numbers that are not exactly 0", request)
    rows = np.asarray(got, np.float64)[hidden]
    if distance(np.where(hidden[..., None], 0, got), want) > subject.limit(request):
        failure = "the other queries change"
    elif not np.isfinite(rows).all():
        failure = "a query without keys gets NaN" if np.isnan(rows).any() else "a query without keys gets infinity"
    else:
        mean = subject.expected(request, allowed=None, scale=1e-30)
        is_mean = distance(rows, mean[hidden]) <= 10 * subject.limit(request)
        failure = "a query without keys gets " + ("the mean of all values" if is_mean else f"numbers up to {error:.2g}")
    return Outcome(error, failure + ", not zeros", request)


def empty(request: Request, label: str) -> Request:
    """Returns the request with a query, or an example, that may attend to no key."""
    if label == "by a length of 0":
        lengths = _lengths(request)
        lengths[-1] = 0
        return request.but(lengths=lengths)
    allowed = coin(*shaped("B1TS", request))
    allowed[0, :, -1] = False
    return request.but(mask=allowed)


def dirty(request: Request, label: str) -> tuple[Request, Request]:
    """Returns a request with padding, or with an empty query, and one with a number of the label planted there."""
    fill = np.nan if "NaN" in label else np.inf
    if "query" in label:
        request = empty(request, "by a mask")
        query = request.query.copy()
        query[0, -1] = fill
        return request, request.but(query=query)
    request = request.but(lengths=_lengths(request))
    names = [name for name in ("key", "value") if f"{name}s" in label]
    return request, request.but(**{name: planted(request, name, fill) for name in names})


NANS = ("NaN in keys", "NaN in values", "infinity in keys", "infinity in values", "NaN in an empty query")


@prop("hidden NaN", *NANS)
def hidden_nan(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """NaN and infinity in padding, and in a query without keys, change not one bit of the output."""
    clean, request = dirty(draw(sizes), label)
    error = distance(subject.output(request), subject.output(clean))
    return Outcome(error, "it reaches the output" if error else "", request)


@prop("grouped heads", "two for each key head", "one key head")
def grouped_heads(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """Consecutive query heads share a key head, if there are fewer key heads."""
    if sizes.N < 2:
        return Outcome()
    few = {"one key head": 1, "two for each key head": sizes.N // 2}[label]
    request = draw(Sizes(sizes.B, sizes.T, sizes.S, few * (sizes.N // few), few, sizes.H, sizes.J))
    tiled = {name: np.tile(getattr(request, name), (1, 1, sizes.N // few, 1)) for name in ("key", "value")}
    others = {"heads repeated by tile, not consecutive ones": lambda: subject.expected(request.but(**tiled))}
    return if_taken("fewer key heads", subject.adapter.grouped, lambda: subject.compare(request, others))


@prop("value dim", sizes=Sizes(J=6))
def value_dim(subject: Subject, sizes: Sizes) -> Outcome:
    """Values may have another dim than keys, which the result has."""
    request = draw(sizes)
    return if_taken("values of another dim", subject.adapter.value_dim, lambda: subject.compare(request))


def biased(request: Request, letters: str) -> Request:
    """Returns the request with a bias of this shape."""
    bias = np.random.default_rng(7).standard_normal(shaped(letters, request)).round(1)
    return request.but(bias=bias.astype(np.float32))


@prop("bias", "added to the logits", "minus infinity", "and a mask")
def bias(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """A bias is added to the scaled logits; minus infinity masks a pair."""
    request = biased(draw(sizes), "BNTS")
    assert request.bias is not None
    if label == "minus infinity":
        masked = np.where(coin(*request.bias.shape), request.bias, -np.inf).astype(np.float32)
        return subject.compare(request.but(bias=masked))
    if label == "and a mask":
        return subject.compare(request.but(mask=coin(*shaped("B1TS", request))))
    scaled = request.query.shape[3] ** -0.5

    def late() -> np.ndarray:
        _, shares = oracle.attention(request.query, request.key, request.value)
        return np.einsum("bnts,bsnj->btnj", shares + request.bias, request.value)

    others = {
        "a bias added after the softmax": late,
        "a bias that is scaled, too": lambda: subject.expected(request, bias=request.bias * scaled),
        "no bias": lambda: subject.expected(request, bias=None),
    }
    return subject.compare(request, others if request.query.shape[2] == request.key.shape[2] else None)


@prop("bias shapes", *SHAPES)
def bias_shapes(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """A bias broadcasts to [B, N, T, S]; a shape may be refused with an error."""
    request = biased(draw(sizes), label)
    return if_shape_taken(subject, label, lambda: subject.compare(request))


@prop("dropout", "mean and rate", sizes=Sizes(B=1, T=32, S=32, N=2, K=2, H=32, J=32))
def dropout(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """Dropped weights are 0, kept ones are divided by the rate that keeps them, and the mean of their sum is one."""
    rate, request = 0.5, draw(sizes)
    eye = np.broadcast_to(np.eye(sizes.S, sizes.J, dtype=np.float32)[None, :, None], request.value.shape)
    request = request.but(query=0 * request.query, value=np.ascontiguousarray(eye), rate=rate)
    first, again, other = (np.asarray(subject.engine.output(request, seed), np.float64) for seed in (0, 0, 1))
    dropped, mean = float((first == 0).mean()), float(first.sum(-1).mean())
    error = abs(mean - 1)  # 1,024 draws at least, also if heads share them: a deviation of 0.03
    failure = ""
    if abs(dropped - rate) > 0.1:
        failure = f"{dropped:.0%} of the weights are dropped at a rate of {rate:.0%}"
    elif error > 0.2:
        failure = f"the mean of the sum of weights is {mean:.2f}, not 1"
    elif not np.array_equal(first, again) or np.array_equal(first, other):
        failure = "equal seeds do not drop the same weights, or others do"
    return Outcome(error, failure, request)


@prop("cached step", "a whole cache", "a part of a cache")
def cached_step(subject: Subject, sizes: Sizes, label: str) -> Outcome:
    """One query with all keys so far gets what it got in the causal pass over the whole row."""
    request = draw(Sizes(sizes.B, sizes.S, sizes.S, sizes.N, sizes.K, sizes.H, sizes.J))
    whole, last = subject.output(request.but(causal=True)), sizes.S - 1
    if label == "a part of a cache":
        last = max(0, last - 2)
        lengths = np.full(sizes.B, last + 1, np.int32)
        step = request.but(query=request.query[:, last : last + 1], lengths=lengths)
    else:
        step = request.but(query=request.query[:, last:], causal=subject.adapter.causal_from == "last")
    return subject.near(
        subject.output(step), whole[:, last : last + 1], step, "differs from that row of the whole pass"
    )
