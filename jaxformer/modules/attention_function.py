"""The interface between attention layers and attention functions, and what layers take for granted of a function.

A cached step computes one late row of attention alone, so row t of a function must not depend on the index of a query
or key: positions reach attention only through masks, biases and position schemes. Maps are outputs for the identity, so
the function must be linear in its values. The functions of this package keep both, as their tests prove; a user's own
function is tried with random numbers, and its parameters, if it has any, with random values.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Hashable
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from jaxformer import masks
from jaxformer.axes import has_known_values
from jaxformer.errors import ConfigError
from jaxformer.functional.attention.base import ScoreFunction
from jaxformer.functional.attention.weights import WeightOptions, offered_weights, unbound
from jaxformer.modules.pure import Params, split_params

ResultT = TypeVar("ResultT")

AttentionFunction = Callable[..., Array]
"""Any function ``(query, key, value, *, mask, bias, scale, score, sinks, dropout) -> [B, T, N, H]``.

These are the arguments of `functional.attention`. A function takes the ones that its model needs: a layer passes a mask
(a `Mask`, a Boolean array or None; ``masks.as_mask(mask).dense(T, S)`` is the array), and a bias, a scale, a score,
sinks or a dropout only if it has them; one that the function lacks is refused. Positions never reach it: a layer
resolves those of masks and biases first, so that a cached step, which computes one late row, needs nothing else. What
depends on positions is a `Mask`, a `Bias` or a `PositionScheme`.

A function with parameters is an ``nnx.Module`` with this ``__call__``. Each block trains its own copy of them, which
starts from the values of the module given; its self-attention and its cross-attention share the copy. With
`modules.per_layer`, each attention of each layer makes its own.
"""


def check_partial(attention: AttentionFunction, settings: Collection[str] = ()) -> None:
    """Checks that an attention function is no partial with arguments of a layer and no wrapper or method of a module.

    The parameters of a wrapped module would not be trained. `settings` are the arguments that this layer passes because
    of its own settings, such as a scale.
    """
    if isinstance(attention, type) or not callable(attention):
        raise TypeError(
            "attention must be a function, such as functools.partial(functional.attention, "
            f"implementation='blockwise'), or an instance of a module, got {attention!r}"
        )
    if (module := _wrapped_module(attention)) is not None:
        raise TypeError(
            f"this attention function wraps the module {type(module).__name__}, whose parameters would not be trained; "
            "pass the module itself"
        )
    while isinstance(attention, functools.partial):
        if bound := [name for name in settings if name in attention.keywords]:
            raise ValueError(
                f"this layer passes {bound[0]!r} from its own setting, so the one in the functools.partial has no "
                "effect; remove one of the two"
            )
        if bound := [name for name in _OF_THE_LAYER if name in attention.keywords]:
            raise ValueError(
                f"a layer passes {bound[0]!r} itself, so the one in functools.partial has no effect; give a function "
                "that combines both, such as def local(query, key, value, *, mask, **kwargs): return "
                "F.attention(query, key, value, mask=mask & masks.window(W), **kwargs); the mask may be None"
            )
        attention = attention.func


def without_partials(attention: object) -> object:
    """Returns the function or module inside a ``functools.partial``, or the attention itself."""
    while isinstance(attention, functools.partial):
        attention = attention.func
    return attention


def name_of(attention: object) -> str:
    """Returns the name of an attention function for messages."""
    attention = without_partials(attention)
    return getattr(attention, "__qualname__", type(attention).__name__)


def taken_options(attention: AttentionFunction, **arguments: object) -> dict[str, object]:
    """Returns those options of a layer that are not None, and those for which an attention function has no default."""
    try:
        parameters = inspect.signature(attention).parameters
    except ValueError:  # a function without a signature
        parameters = {}
    takes_any = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    required = [name for name, p in parameters.items() if p.default is p.empty]
    taken = {name: x for name, x in arguments.items() if x is not None or name in required}
    if not takes_any and (missing := [name for name in taken if name not in parameters]):
        raise TypeError(
            f"this layer has a {missing[0]}, which the attention function {name_of(attention)} does not take; "
            f"add the argument {missing[0]!r}, or use a model without it"
        )
    return taken


def check_result(result: ResultT, query: Array | np.ndarray, values: Array | np.ndarray) -> ResultT:
    """Returns the result of an attention function, whose shape may be wrong if it is a user's own."""
    expected = (*query.shape[:3], values.shape[3])
    shape = getattr(result, "shape", None)
    if shape != expected:
        got = f"a {type(result).__name__}" if shape is None else f"shape {list(shape)}"
        raise ValueError(f"an attention function must return an array [B, T, N, H] = {list(expected)}, got {got}")
    return result


def _wrapped_module(attention: object) -> nnx.Module | None:
    """Returns the module inside partials and decorators, or the one whose method this is, or None."""
    if isinstance(attention, nnx.Module):
        return None
    while attention is not None and not isinstance(attention, nnx.Module):
        owner, inner = (getattr(attention, name, None) for name in ("__self__", "__wrapped__"))
        attention = owner if isinstance(owner, nnx.Module) else getattr(attention, "func", inner)
    return attention


_OF_THE_LAYER = ("mask", "bias", "dropout")


Operand: TypeAlias = jax.Array | np.ndarray
"""A query, key or value, of the device or the host."""

LENGTH, ROOM = 40, 48
"""The length of the tiny example, and the number of slots of its cache."""
ROWS = 6, 21, 39
"""The rows that are also computed alone. A function that depends on larger indices only, such as one that hides keys
more than 64 places away, is not noticed."""


class Heads(NamedTuple):
    """The attention of a layer, without its arrays."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float | None = None
    score: ScoreFunction | None = None
    sinks: bool = False

    @property
    def options(self) -> WeightOptions:
        """The arguments by which a layer of these settings calls its attention function, with sinks of 0."""
        sinks = jnp.zeros(self.num_heads, jnp.float32) if self.sinks else None
        return {"scale": self.scale, "score": self.score, "sinks": sinks}


def check_rows(attention: AttentionFunction, heads: Heads) -> None:
    """Checks that each row of an attention function is the same when it is computed alone, as in a cached step."""
    if _is_own(attention):
        return
    function, name = _concrete(attention), name_of(attention)
    try:
        difference = _difference(function, heads)
    except Exception as error:
        raise ConfigError(
            f"the attention function {name} cannot compute a row alone, as a cached step of decoding does: "
            f"{type(error).__name__}: {error}"
        ) from error
    if difference is not None:
        raise ConfigError(
            f"row {difference[0]} of the attention function {name} differs by {difference[1]:.2g} when it is computed "
            "alone, as a cached step of decoding does, so it depends on the index of a query or key; write that as a "
            "Mask, a functional.Bias or a modules.PositionScheme, which get absolute positions"
        )


def check_linear(attention: AttentionFunction, heads: Heads) -> None:
    """Checks that the output of an attention function is linear in the values, so that it has maps."""
    if has_maps(attention, heads):
        return
    raise ConfigError(
        f"the attention function {name_of(attention)} is not linear in its values, so it has no maps; give it a method "
        "or an attribute weights(query, key, **options) that returns them, [B, any number, T, S]"
    )


def has_maps(attention: AttentionFunction, heads: Heads) -> bool:
    """Returns True if an attention function offers its maps or is linear in its values."""
    offered = offered_weights(unbound(attention)[0])
    return _is_own(attention) or offered is not None or _is_linear(_concrete(attention), heads)


def _is_own(attention: object) -> bool:
    attention = without_partials(attention)
    module = str(getattr(attention, "__module__", ""))
    if isinstance(attention, nnx.Module) or not module.startswith("jaxformer."):
        return False
    # With functools.wraps, a function of a user has the names of ours.
    return not hasattr(attention, "__wrapped__") or getattr(sys.modules[module], name_of(attention), None) is attention


@dataclasses.dataclass(frozen=True)
class _Module:
    """A module with random parameters; equal graphs and shapes make equal functions, whatever the constants are."""

    graph: nnx.GraphDef[AttentionFunction]
    kind: Hashable  # the structure of its parameters
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    constants: Params = dataclasses.field(compare=False)

    def __call__(self, *arrays: Operand, **arguments: object) -> jax.Array:
        keys = jax.random.split(jax.random.key(0), max(1, len(self.shapes)))
        leaves = [0.5 * jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, self.shapes, strict=False)]
        attention = nnx.merge(self.graph, jax.tree.unflatten(self.kind, leaves), self.constants)
        return attention(*arrays, **taken_options(attention, **arguments))


def _concrete(attention: AttentionFunction) -> AttentionFunction:
    """Returns an attention function that needs no array from outside: the parameters of a module may be traced."""
    if not isinstance(attention, nnx.Module):
        return attention
    graph, params, constants = split_params(attention)
    leaves, kind = jax.tree.flatten(nnx.to_pure_dict(params))
    # Constants have their values where these are known, as in a search, and 1 in the maps of a stack.
    known = jax.tree.map(lambda x: x if has_known_values(x) else np.ones(x.shape, x.dtype), nnx.to_pure_dict(constants))
    return _Module(graph, kind, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves), known)


def _arrays(heads: Heads, length: int) -> list[np.ndarray]:
    sizes = (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads, heads.num_kv_heads)
    random = np.random.default_rng(0)
    return [random.standard_normal((1, length, n, heads.head_dim)).astype(np.float32) for n in sizes]


def _call(
    attention: AttentionFunction, heads: Heads, query: Operand, key: Operand, value: Operand, mask: masks.Mask
) -> jax.Array:
    arguments = taken_options(attention, **{**heads.options, "mask": mask})
    return check_result(attention(query, key, value, **arguments), query, value)


@functools.lru_cache(maxsize=64)
def _difference(attention: AttentionFunction, heads: Heads) -> tuple[int, float] | None:
    """Returns the first row that differs when computed alone, and by how much; None if none does."""
    query, key, value, _ = _arrays(heads, ROOM)
    call = jax.jit(functools.partial(_call, attention, heads))
    with jax.ensure_compile_time_eval():
        whole = np.asarray(call(query[:, :LENGTH], key[:, :LENGTH], value[:, :LENGTH], masks.causal()))
        for row in ROWS:
            seen = masks.dense(np.arange(ROOM)[None, None, None] <= row, finite=True)
            alone = np.asarray(call(query[:, row : row + 1], key, value, seen))[:, 0]
            difference = float(np.abs(alone - whole[:, row]).max())
            if not difference <= 1e-3 * max(1.0, float(np.abs(whole).max())):
                return row, difference
    return None


@functools.lru_cache(maxsize=64)
def _is_linear(attention: AttentionFunction, heads: Heads) -> bool:
    query, key, first, second = _arrays(heads, 8)
    call = jax.jit(functools.partial(_call, attention, heads))
    with jax.ensure_compile_time_eval():
        one, two, both = (np.asarray(call(query, key, x, masks.causal())) for x in (first, second, first + 2 * second))
    return bool(np.abs(both - one - 2 * two).max() <= 1e-3 * max(1.0, float(np.abs(both).max())))
