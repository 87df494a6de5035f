"""The arguments of attention calls, captured in a forward pass, from which maps of attention are computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional, masks
from jaxformer.functional.attention.base import ScoreFunction
from jaxformer.functional.bias import Bias
from jaxformer.modules.attention_function import AttentionFunction, Heads, check_linear
from jaxformer.modules.pure import Params
from jaxformer.reprs import brief_with_methods

Intermediates = dict[str, Any]
"""Intermediate results of a layer: a `CapturedAttention` under "self" and "cross", a `Routing` under "experts"."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CapturedAttention:
    """The arguments of an attention call that determine its weights; for a stack, arrays have a leading dimension L."""

    query: jax.Array  # [B, T, N, H]
    key: jax.Array  # [B, S, K, H]
    bias: Bias | Array | None = None
    sinks: jax.Array | None = None  # [N]
    mask: masks.Mask | Array | None = None  # the mask of the call
    scale: float | None = dataclasses.field(default=None, metadata={"static": True})
    score: ScoreFunction | None = dataclasses.field(default=None, metadata={"static": True})
    attention: AttentionFunction | nnx.GraphDef[AttentionFunction] = dataclasses.field(
        default=functional.attention, metadata={"static": True}
    )  # the graph of a module
    parameters: Params | None = None  # of a module, with its constants

    __repr__ = brief_with_methods

    def layer(self, index: int) -> CapturedAttention:
        """Returns one layer of a stack; layers count from 0."""
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

        For a stack, these are the weights of all layers, with a leading dimension L; `layer` selects one. The weights
        of a user's own attention function are its output for the identity, or what its `weights` returns: see
        `functional.weights_of`.

        Args:
          mask: a mask to use instead of the one of the captured call; to see the weights without any mask, first
            replace the field `mask` with None (`dataclasses.replace`).

        Raises:
          ValueError: the attention function is not linear in its values and does not offer its weights.
        """
        if self.query.ndim == 5:
            return jax.vmap(lambda layer: layer.weights(mask=mask, rows=rows, heads=heads))(self)
        attention = self.attention
        if isinstance(attention, nnx.GraphDef):
            attention = nnx.merge(attention, self.parameters)
        sizes = self.query.shape[2], self.key.shape[2], self.query.shape[3]
        check_linear(attention, Heads(*sizes, self.scale, self.score, self.sinks is not None))
        if mask is None:
            mask = self.mask
        weights_of = functools.partial(functional.weights_of, attention, self.query, self.key, rows=rows, heads=heads)
        return weights_of(mask=mask, bias=self.bias, scale=self.scale, score=self.score, sinks=self.sinks)


def split_attention(
    attention: AttentionFunction,
) -> tuple[AttentionFunction | nnx.GraphDef[AttentionFunction], Params | None]:
    """Returns the fields `attention` and `parameters` of a `CapturedAttention`."""
    if not isinstance(attention, nnx.Module):
        return attention, None
    graph, arrays = nnx.split(attention)
    return graph, nnx.to_pure_dict(arrays)


def check_layer(index: int, num_layers: int) -> None:
    """Checks the index of a layer, because JAX would clamp an index that is too large."""
    if not -num_layers <= index < num_layers:
        raise ValueError(f"layers count from 0 to {num_layers - 1}, got {index}")
