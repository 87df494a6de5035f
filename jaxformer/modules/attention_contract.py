"""The contract of attention functions: what layers, searches, maps and training take for granted of them.

`check_attention` tries a function or a module on tiny arrays, law by law. `attention_function` has the laws without
which a result would be wrong without notice; a model checks those itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer import functional, masks
from jaxformer.functional.attention.base import ScoreFunction
from jaxformer.functional.attention.weights import offered_weights
from jaxformer.modules.attention_function import (
    AttentionFunction,
    Heads,
    Operand,
    check_partial,
    check_result,
    check_rows,
    has_maps,
    name_of,
    taken_options,
    without_partials,
)
from jaxformer.modules.per_layer import PerLayer
from jaxformer.modules.pure import Params, split_params

B, T, S = 2, 5, 7
OPTIONS = ("mask", "bias", "scale", "score", "sinks", "dropout")
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""``jax.jit`` for programs that run once, for microseconds."""


class BrokenLawError(Exception):
    """A law is broken; the message says how."""


@dataclasses.dataclass(frozen=True)
class AttentionReport:
    """The result of `check_attention`; it prints as a table."""

    name: str
    findings: dict[str, str]
    """The finding of each law; all of them are kept."""

    def __str__(self) -> str:
        lines = [f"{law:13} {finding}" for law, finding in self.findings.items()]
        return "\n".join([f"{self.name} keeps the contract of attention functions", *lines])


@dataclasses.dataclass(frozen=True)
class _Subject:
    attention: AttentionFunction
    heads: Heads
    params: Params

    def call(self, params: Params, query: Operand, key: Operand, value: Operand, **arguments: object) -> jax.Array:
        attention = self.bound(params)
        arguments = {**self.heads.options, **arguments}
        return check_result(attention(query, key, value, **taken_options(attention, **arguments)), query, value)

    def bound(self, params: Params) -> AttentionFunction:
        if not isinstance(self.attention, nnx.Module):
            return self.attention
        graph, _, constants = split_params(self.attention)
        return nnx.merge(graph, params, constants)

    def masked(self, params: Params, query: Operand, key: Operand, value: Operand, allowed: Operand) -> jax.Array:
        return self.call(params, query, key, value, mask=masks.dense(allowed))

    def arrays(self, *lengths: int) -> list[np.ndarray]:
        """Returns queries, keys and values; the keys and values have the last length."""
        random = np.random.default_rng(0)
        sizes = self.heads.num_heads, self.heads.num_kv_heads, self.heads.num_kv_heads
        places = lengths[0], lengths[-1], lengths[-1]
        shapes = [(B, length, n, self.heads.head_dim) for length, n in zip(places, sizes, strict=True)]
        return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def check_attention(
    attention: AttentionFunction,
    *,
    num_heads: int = 4,
    num_kv_heads: int | None = None,
    head_dim: int = 8,
    scale: float | None = None,
    score: ScoreFunction | None = None,
    sinks: bool = False,
) -> AttentionReport:
    """Checks that an attention function keeps the contract of this library, in some seconds, on tiny random arrays.

    The laws, in this order: it takes a mask, and the options that it takes have an effect; its result is
    ``[B, T, N, H]`` for any lengths; masked keys are inert, and a query without keys gets numbers; it has maps, if it
    is linear in its values or offers ``weights(query, key, **options)``, of any number; gradients are finite, also
    of a query without keys; bfloat16 gives bfloat16; ``jax.vmap`` changes nothing (all is done in ``jax.jit``); and a
    row that is computed alone, as in a cached step, is the same.

    Args:
      attention: a function, a module, or a `per_layer`, whose first layer is tried. The parameters of a module are
        tried with their values plus some noise.
      num_heads, num_kv_heads, head_dim: the heads; as many key heads as heads by default.
      scale, score, sinks: the settings of the layer: see `modules.Logits`.

    Returns:
      A report, which prints the finding of each law.

    Raises:
      ValueError: a law is broken; the message names the first one.
      TypeError: `attention` is no function, module or `per_layer`.

    >>> def averaging(query, key, value, *, mask):
    ...     allowed = mask.dense(query.shape[1], key.shape[1]).astype(query.dtype)
    ...     weights = allowed / jnp.maximum(allowed.sum(-1, keepdims=True), 1)
    ...     weights = jnp.broadcast_to(weights, (len(query), query.shape[2], *allowed.shape[2:]))
    ...     return jnp.einsum("bnts,bsnh->btnh", weights, value)
    >>> report = check_attention(averaging, num_heads=2)
    >>> print(report.findings["maps"])
    2, its output for the identity
    """
    if num_kv_heads is None:
        num_kv_heads = num_heads
    heads = Heads(num_heads, num_kv_heads, head_dim, scale, score, sinks)
    made, name, params = attention, name_of(attention), {}
    if isinstance(attention, PerLayer):
        made, name = attention.factory(nnx.Rngs(0), 0), name_of(attention.factory)
    check_partial(made)
    if isinstance(made, nnx.Module):
        params = nnx.to_pure_dict(split_params(made)[1])
    subject = _Subject(made, heads, _noisy(params))
    findings = {}
    for law, check in _LAWS.items():
        try:
            findings[law] = check(subject)
        except Exception as error:
            what = (str(error).strip().splitlines() or ["no message"])[0]
            if not isinstance(error, BrokenLawError):
                what = f"{type(error).__name__}: {what}"
            raise ValueError(f"the attention function {name} breaks the law of {law}: {what}") from error
    return AttentionReport(name, findings)


def _noisy(params: Params) -> Params:
    """Returns parameters with some noise, because some start at 0 or 1."""
    random = np.random.default_rng(1)

    def add(x: Operand) -> Operand:
        noise = 0.1 * random.standard_normal(x.shape)
        return np.asarray(np.asarray(x) + noise, x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(add, params)


def _check_near(what: str, got: object, expected: object, tolerance: float = 1e-4) -> None:
    x, y = (np.asarray(array, np.float32) for array in (got, expected))
    difference = float(np.abs(x - y).max(initial=0.0))
    if not difference <= tolerance * max(1.0, float(np.abs(y).max(initial=0.0))):
        raise BrokenLawError(f"{what} by {difference:.2g}")


def _check_finite(what: str, tree: object) -> None:
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        if not np.isfinite(np.asarray(x, np.float32)).all():
            of = jax.tree_util.keystr(path, simple=True, separator="/")
            raise BrokenLawError(f"{what} {of}".strip() + " is not finite")


def _check_arguments(subject: _Subject) -> str:
    arrays = subject.arrays(T)
    bias = np.random.default_rng(2).standard_normal((1, subject.heads.num_heads, T, T)).astype(np.float32)
    values = {
        "mask": masks.causal(),
        "bias": jnp.asarray(bias),
        "scale": 0.3,
        "score": functional.soft_cap(2.0),
        "sinks": jnp.ones(subject.heads.num_heads, jnp.float32),
        "dropout": functional.Dropout(0.5, jax.random.key(0)),
    }

    def call(arrays: list[Operand], *names: str) -> jax.Array:
        return subject.call(subject.params, *arrays, **{name: values[name] for name in ("mask", *names)})

    taken = []
    for name in OPTIONS:
        try:
            jax.eval_shape(lambda x, name=name: call(x, name), arrays)
        except Exception:
            if name == "mask":
                raise
        else:
            taken.append(name)
    tried = [name for name in taken if name in ("bias", "sinks", "dropout")]
    plain, *others = quick(lambda arrays: [call(arrays), *(call(arrays, name) for name in tried)])(arrays)
    for name, other in zip(tried, others, strict=True):
        if np.array_equal(plain, other):
            raise BrokenLawError(f"it takes {name!r}, but this changes nothing; use it, or do not take it")
    lacking = [name for name in OPTIONS if name not in taken]
    return f"takes {', '.join(taken)}" + (f"; a model with {' or '.join(lacking)} is refused" if lacking else "")


def _check_shape(subject: _Subject) -> str:
    arrays = subject.arrays(T, S)
    allowed = np.ones((B, 1, T, S), bool)
    _check_finite("the result", quick(subject.masked)(subject.params, *arrays, allowed))
    try:
        jax.eval_shape(subject.call, subject.params, *arrays)
    except Exception:
        return "[B, T, N, H] for any lengths, but it needs a mask, which an encoder without padding does not pass"
    return "[B, T, N, H] for any lengths, with a mask and without"


def _check_masks(subject: _Subject) -> str:
    query, key, value = subject.arrays(T, S)
    call = quick(subject.masked)
    allowed = np.random.default_rng(3).random((B, 1, T, S)) < 0.5
    allowed[..., 1], allowed[..., 0] = False, True
    hidden = ~allowed.any(2)[:, 0, :, None, None]
    plain = call(subject.params, query, key, value, allowed)
    for name, arrays in (("key", (key + 3 * hidden, value)), ("value", (key, value + 3 * hidden))):
        other = call(subject.params, query, *(x.astype(np.float32) for x in arrays), allowed)
        _check_near(f"a {name} that the mask hides from all queries changes the result", other, plain)
    # One key for query 2, and all keys for the others: each query has its own mask.
    one_key = np.ones((B, 1, T, S), bool)
    one_key[:, :, 2, 1:] = False
    shifted = np.concatenate([value[:, :1], value[:, 1:] + 3], 1).astype(np.float32)
    one, other = (call(subject.params, query, key, x, one_key)[:, 2] for x in (value, shifted))
    _check_near("a key that the mask hides from one query only changes its result", other, one)
    empty = allowed.copy()
    empty[1] = False
    result = np.asarray(call(subject.params, query, key, value, empty))
    if not np.isfinite(result).all():
        raise BrokenLawError(
            "a query that may see no key, as in a row of padding, gets NaN; give it zeros, for example with a large "
            "negative number in place of minus infinity"
        )
    nans = (np.where(hidden, np.nan, x).astype(np.float32) for x in (key, value))
    if np.isfinite(np.asarray(call(subject.params, query, *nans, allowed))).all():
        return "masked keys are inert, also if they are NaN"
    return "masked keys are inert, but NaN in them reaches the result"


def _check_cached(subject: _Subject) -> str:
    try:
        check_rows(subject.attention, subject.heads)
    except ValueError as error:
        raise BrokenLawError(str(error)) from error.__cause__
    return "equal the full pass: a row that is computed alone is the same"


def _check_maps(subject: _Subject) -> str:
    if not has_maps(subject.attention, subject.heads):
        return "none: it is not linear in its values, and has no method or attribute weights(query, key, **options)"
    query, key, _ = subject.arrays(T, S)
    allowed = np.ones((B, 1, T, S), bool)
    allowed[..., -2:] = False

    def maps(params: Params, query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        attention = subject.bound(params)
        of = functools.partial(functional.weights_of, attention, query, key, mask=masks.dense(allowed))
        of = functools.partial(of, **subject.heads.options)
        return of(), of(rows=[1], heads=[0])

    whole, part = quick(maps)(subject.params, query, key)
    _check_finite("a map", whole)
    _check_near("a map of one row and head differs from all maps", part, whole[:, :1, 1:2])
    _check_near("a masked key has weight: its map differs from 0", whole[..., -2:], jnp.zeros_like(whole[..., -2:]))
    offered = offered_weights(without_partials(subject.attention))
    return f"{whole.shape[1]}, " + ("which it offers" if offered is not None else "its output for the identity")


def _check_gradients(subject: _Subject) -> str:
    allowed = np.tril(np.ones((B, 1, T, T), bool))
    allowed[1] = False
    seen = allowed.any((1, 3))[..., None, None]

    def loss(params: Params, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        y = subject.masked(params, query, key, value, allowed)
        return jnp.square(jnp.where(seen, y, 0)).sum()

    gradients = quick(jax.grad(loss, (0, 1, 2, 3)))(subject.params, *subject.arrays(T))
    for name, of in zip(("parameter", "queries", "keys", "values"), gradients, strict=True):
        _check_finite(f"the gradient of the {name}", of)
    count = len(jax.tree.leaves(subject.params))
    return "finite" + (f", also of {count} arrays of parameters" if count else "")


def _check_bfloat16(subject: _Subject) -> str:
    arrays = subject.arrays(T, S)
    allowed = np.ones((B, 1, T, S), bool)
    allowed[..., -2:] = False
    expected = quick(subject.masked)(subject.params, *arrays, allowed)
    low = [x.astype(jnp.bfloat16) for x in arrays]

    def loss(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = subject.masked(subject.params, query, key, value, allowed)
        return y.astype(jnp.float32).sum(), y

    gradients, result = quick(jax.grad(loss, (0, 1, 2), has_aux=True))(*low)
    if result.dtype != jnp.bfloat16:
        raise BrokenLawError(
            f"its result for bfloat16 arrays is {result.dtype}, so a model in bfloat16 cannot add it to its states; "
            "end with .astype(query.dtype)"
        )
    _check_finite("the gradient in bfloat16", gradients)
    _check_near("the result in bfloat16 differs from float32", result, expected, 0.06)
    difference = float(np.abs(np.asarray(result, np.float32) - np.asarray(expected)).max())
    return f"gives bfloat16, at most {difference:.1g} from float32"


def _check_transforms(subject: _Subject) -> str:
    arrays = subject.arrays(T, S)
    allowed = np.arange(S)[None, None, None] < np.array([S, S - 2])[:, None, None, None]
    allowed = np.broadcast_to(allowed, (B, 1, T, S))
    call = functools.partial(subject.masked, subject.params)
    rows = [x[:, None] for x in (*arrays, allowed)]
    mapped = quick(jax.vmap(call))(*rows)[:, 0]
    _check_near("the rows of a batch, one by one by jax.vmap, differ", mapped, quick(call)(*arrays, allowed))
    return "change nothing, and the rows of a batch are independent"


_LAWS: dict[str, Callable[[_Subject], str]] = {
    "arguments": _check_arguments,
    "shape": _check_shape,
    "masks": _check_masks,
    "maps": _check_maps,
    "gradients": _check_gradients,
    "bfloat16": _check_bfloat16,
    "vmap and jit": _check_transforms,
    "cached steps": _check_cached,
}
