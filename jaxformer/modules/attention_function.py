"""The interface between attention layers and attention functions: the arguments of a call, and their capture."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional, masks
from jaxformer.functional.attention.base import ScoreFunction, at_positions
from jaxformer.functional.attention.weights_functions import has_weights, weights_function
from jaxformer.functional.bias import Bias
from jaxformer.modules.pure import Params, split_params
from jaxformer.reprs import brief_with_methods

Intermediates = dict[str, Any]
"""Intermediate results of a layer: a `CapturedAttention` under "self" and "cross", a `Routing` under "experts"."""

AttentionFunction = Callable[..., Array]
"""A function with the signature of `functional.attention`: ``query, key, value, *, mask, dropout``.

`mask` is a `Mask`, a Boolean array or None (``masks.as_mask(mask).dense(T, S)`` is the array), and `dropout` is None if
nothing is dropped. A layer with a bias, a scale, a score, sinks or given positions passes these too, under the names of
`functional.attention`. Cached steps pass `query_positions` and `key_positions`; for full sequences the positions are 0,
1, 2, ... and are not passed. The weights of a function can be inspected if it is decorated with
`functional.with_weights`. A function with parameters is an ``nnx.Module`` with this ``__call__``. Each
block trains its own copy of them, which starts from the values of the module given; its self-attention and its
cross-attention share the copy.
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CapturedAttention:
    """The arguments of an attention call that determine its weights; for a stack, arrays have a leading dimension L."""

    query: jax.Array  # [B, T, N, H]
    key: jax.Array  # [B, S, K, H]
    bias: Bias | None = None
    sinks: jax.Array | None = None  # [N]
    query_positions: jax.Array | None = None  # int [B, T]
    key_positions: jax.Array | None = None  # int [B, S] or [1, S]
    mask: masks.Mask | Array | None = None  # the mask of the call
    scale: float | None = dataclasses.field(default=None, metadata={"static": True})
    score: ScoreFunction | None = dataclasses.field(default=None, metadata={"static": True})
    attention: AttentionFunction | nnx.GraphDef[Any] = dataclasses.field(
        default=functional.attention, metadata={"static": True}
    )  # the graph of a module
    parameters: Params | None = None  # of a module

    __repr__ = brief_with_methods

    def layer(self, index: int) -> CapturedAttention:
        """Returns one layer of a stack; layers count from 0.

        Raises:
          ValueError: there is no such layer, or this is a single layer already.
        """
        if self.query.ndim != 5:
            raise ValueError(f"this is a single layer already: queries have shape {list(self.query.shape)}")
        check_layer(index, self.query.shape[0])
        return jax.tree.map(lambda x: x[index], self)

    def weights(
        self,
        *,
        mask: masks.Mask | Array | None = None,
        rows: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> Float[Array, "*L B heads rows S"]:
        """Returns the weights, like `functional.attention_weights`; with sinks, rows sum to less than 1.

        For a stack, these are the weights of all layers, with a leading dimension L; `layer` selects one.

        For a custom attention function, its own weights function is used: see `functional.with_weights`.

        Args:
          mask: a mask to use instead of the one of the captured call; to see the weights without any mask, first
            replace the field `mask` with None (`dataclasses.replace`).

        Raises:
          ValueError: the attention function has no weights function, or the layer has positions and that function does
            not accept them.
        """
        if self.query.ndim == 5:
            return jax.vmap(lambda layer: layer.weights(mask=mask, rows=rows, heads=heads))(self)
        attention: Any = self.attention
        function = weights_function(attention if self.parameters is None else nnx.merge(attention, self.parameters))
        mask = self.mask if mask is None else mask
        optional: dict[str, Any] = {name: getattr(self, name) for name in ("bias", "scale", "score", "sinks")}
        if self.query_positions is not None or self.key_positions is not None:
            check_takes_positions(function)
            optional |= {"query_positions": self.query_positions, "key_positions": self.key_positions}
        optional |= {"rows": rows, "heads": heads}
        # As in a layer, the function need not accept arguments that are never passed to it.
        return function(self.query, self.key, mask=mask, **{name: x for name, x in optional.items() if x is not None})


def split_attention(attention: AttentionFunction) -> dict[str, Any]:
    """Returns the fields `attention` and `parameters` of a `CapturedAttention`."""
    if not isinstance(attention, nnx.Module):
        return {"attention": attention}
    graph, params = split_params(attention)
    return {"attention": graph, "parameters": nnx.to_pure_dict(params)}


def check_layer(index: int, num_layers: int) -> None:
    """Checks the index of a layer, because JAX would clamp an index that is too large.

    Raises:
      ValueError: the index is not in [-num_layers, num_layers).
    """
    if not -num_layers <= index < num_layers:
        raise ValueError(f"layers count from 0 to {num_layers - 1}, got {index}")


def position_free(attention: AttentionFunction) -> AttentionFunction:
    """Marks an attention function as independent of positions, so that cached steps can use it.

    A cached step computes one late row. A function that depends on positions, such as one with its own distance bias,
    must take `query_positions` and `key_positions`; one that does not take them is rejected unless it is wrapped in
    this function. The mask and the bias that the model passes are still computed at the right positions. The weights
    function of `functional.with_weights` counts as independent of positions too.
    """

    @functools.wraps(attention)
    def without_positions(query, key, *value, query_positions=None, key_positions=None, **options):
        if query_positions is not None or key_positions is not None:
            mask, bias, scale = (options.pop(name, None) for name in ("mask", "bias", "scale"))
            mask, bias = at_positions(query, key, mask, bias, scale, (query_positions, key_positions))
            given = {"mask": mask, "bias": bias, "scale": scale}
            options |= {name: x for name, x in given.items() if x is not None or name == "mask"}
        return attention(query, key, *value, **options)

    without_positions.__signature__ = inspect.signature(without_positions, follow_wrapped=False)  # type: ignore[attr-defined]
    if has_weights(attention):
        return functional.with_weights(position_free(weights_function(attention)))(without_positions)
    return without_positions


def check_partial(attention: AttentionFunction, settings: Collection[str] = ()) -> None:
    """Checks that an attention function is no partial with arguments of a layer and no wrapper or method of a module.

    Args:
      settings: the arguments that this layer passes because of its own settings, such as a scale.

    Raises:
      ValueError: a ``functools.partial`` binds an argument that the layer passes itself.
      TypeError: `attention` is not a function but, for example, the name of an implementation or a class; or it is a
        wrapper or method of a module, whose parameters would not be trained.
    """
    if isinstance(attention, type):
        name = attention.__name__
        raise TypeError(f"attention must be a function or an instance of a module, got the class {name}; call {name}")
    if not callable(attention):
        raise TypeError(
            "attention must be a function, such as functools.partial(functional.attention, "
            f"implementation='blockwise'), got {attention!r}"
        )
    if (module := _wrapped_module(attention)) is not None:
        raise TypeError(
            f"this attention function wraps the module {type(module).__name__}, whose parameters would not be trained; "
            "pass the module itself, with query_positions and key_positions among the arguments of its __call__ for "
            "cached steps, and __call__ decorated with functional.with_weights for maps"
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


def check_result(result: Any, query: Array, values: Array) -> Array:
    """Returns the result of an attention function, whose shape may be wrong if it is a user's own.

    Raises:
      ValueError: it is not an array ``[B, T, N, H]``.
    """
    expected = (*query.shape[:3], values.shape[3])
    if getattr(result, "shape", None) != expected:
        got = f"shape {list(result.shape)}" if hasattr(result, "shape") else f"a {type(result).__name__}"
        raise ValueError(f"an attention function must return an array [B, T, N, H] = {list(expected)}, got {got}")
    return result


def _wrapped_module(attention: Any) -> nnx.Module | None:
    """Returns the module inside partials and decorators, or the one whose method this is, or None."""
    if isinstance(attention, nnx.Module):
        return None
    while attention is not None and not isinstance(attention, nnx.Module):
        owner, inner = (getattr(attention, name, None) for name in ("__self__", "__wrapped__"))
        attention = owner if isinstance(owner, nnx.Module) else getattr(attention, "func", inner)
    return attention


_OF_THE_LAYER = ("mask", "bias", "dropout", "query_positions", "key_positions")


def check_takes_positions(attention: AttentionFunction) -> None:
    """Checks that an attention or weights function takes `query_positions` and `key_positions`.

    Raises:
      ValueError: it takes neither these nor arbitrary keywords, so a cached step could be silently wrong.
    """
    parameters = inspect.signature(attention).parameters
    kind = type(attention).__name__ if isinstance(attention, nnx.Module) else attention
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    if missing := [name for name in ("query_positions", "key_positions") if name not in parameters]:
        raise ValueError(
            f"a cached step or given positions need a function that takes {' and '.join(missing)}, got "
            f"{getattr(attention, '__name__', kind)}; add them, or wrap it in modules.position_free if positions "
            "do not matter to it"
        )
