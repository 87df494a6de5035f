"""Conversion between the tensors of other programs and parameters.

PyTorch's linear layers hold ``[out, in]``, one for queries, keys and values each, and one tensor for each layer. Here
they are ``[in, out]``, heads are dimensions, queries, keys and values of one kernel are side by side, and the layers of
a stack are the first dimension.

A model family is described by a table: a tree like the parameters' tree, whose leaves are `Source` objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

Shape = tuple[int, ...]
Tensor = jax.Array | np.ndarray
Leaf = Tensor | jax.ShapeDtypeStruct
"""A parameter, or its shape."""
Table = Mapping[str, "Source | Table"]
"""A tree of the parameters' names, with the source of each."""


@dataclasses.dataclass(frozen=True)
class Packing:
    """A bijection between one parameter, without its dimension of layers, and one or more tensors."""

    load: Callable[..., np.ndarray]
    """``(shape, *tensors) -> array`` of this shape."""
    save: Callable[[Tensor, int], tuple[Tensor, ...]]
    """``(array, number of tensors) -> tensors``; uses methods of arrays alone, so that shapes can be traced."""


@dataclasses.dataclass(frozen=True)
class Source:
    """The tensors from which a parameter is made."""

    names: tuple[str, ...]
    """Their names in a file; ``{}`` stands for the number of the layer."""
    packing: Packing
    optional: bool = False
    """True if files may lack these tensors; the parameter is then zero."""

    @property
    def stacked(self) -> bool:
        """True if there is one set of tensors for each layer."""
        return "{}" in self.names[0]

    def of_layer(self, layer: int) -> list[str]:
        """Returns the names in one layer, or the only names."""
        return [name.format(layer) for name in self.names]

    def num_layers(self, leaf: Leaf) -> int:
        """Returns the number of sets of tensors."""
        return int(np.prod(leaf.shape[: self.stacked]))

    def by_layer(self, parameter: np.ndarray) -> np.ndarray:
        """Returns a parameter with a first dimension of layers."""
        return parameter.reshape(self.num_layers(parameter), *parameter.shape[self.stacked :])

    def shapes(self, leaf: Leaf) -> list[Shape]:
        """Returns the shapes of the tensors, from the shape of the parameter, of one layer."""
        one = jax.ShapeDtypeStruct(leaf.shape[self.stacked :], leaf.dtype)
        return [x.shape for x in jax.eval_shape(lambda x: self.packing.save(x, len(self.names)), one)]


SAME = Packing(lambda shape, x: x.reshape(shape), lambda x, _: (x,))
"""The same array."""

ONE_ROW = Packing(lambda shape, x: x.reshape(shape), lambda x, _: (x.reshape(1, *x.shape),))
"""A vector or table with one more dimension of size 1 in front."""

ONE_TOKEN = Packing(lambda shape, x: x.reshape(shape), lambda x, _: (x.reshape(1, 1, -1),))
"""A vector ``[D]`` as ``[1, 1, D]``."""

TRANSPOSED = Packing(lambda shape, x: x.T.reshape(shape), lambda x, _: (x.T,))
"""A kernel ``[in, out]`` of ``[out, in]``."""

TO_HEADS = Packing(lambda shape, x: x.T.reshape(shape), lambda x, _: (x.reshape(*x.shape[:-2], -1).T,))
"""A kernel ``[D, N, H]`` of ``[N H, D]``, or a bias ``[N, H]`` of ``[N H]``."""

FROM_HEADS = Packing(lambda shape, x: x.T.reshape(shape), lambda x, _: (x.reshape(-1, x.shape[-1]).T,))
"""A kernel ``[N, H, D]`` of ``[D, N H]``."""

FROM_HEADS_PLAIN = Packing(lambda shape, x: x.reshape(shape), lambda x, _: (x.reshape(-1, x.shape[-1]),))
"""A kernel ``[N, H, D]`` of ``[N H, D]``."""

PATCHES = Packing(lambda shape, x: x.transpose(2, 3, 1, 0), lambda x, _: (x.transpose(3, 2, 0, 1),))
"""A kernel of patches ``[p, p, C, D]`` of ``[D, C, p, p]``."""


def _load_groups(shape: Shape, *tensors: np.ndarray) -> np.ndarray:
    groups, dim = shape[-3], shape[-1]
    parts = [x.T.reshape(*shape[:-3], groups, -1, dim) for x in tensors]
    return np.concatenate(parts, -2)


def _save_groups(x: Tensor, number: int) -> tuple[Tensor, ...]:
    queries = x.shape[-2] - number + 1
    parts = [x[..., :queries, :], *(x[..., i : i + 1, :] for i in range(queries, x.shape[-2]))]
    return tuple(part.reshape(*x.shape[:-3], -1).T for part in parts)


GROUPS = Packing(_load_groups, _save_groups)
"""The projections of each group of heads side by side: ``[D, K, G + 2, H]`` of queries ``[K G H, D]``, keys and values
``[K H, D]``; or ``[D, K, 2, H]`` of keys and values. Biases are the same without D."""


def _load_side_by_side(shape: Shape, x: np.ndarray) -> np.ndarray:
    *lead, heads, three, dim = shape
    return x.reshape(*lead, three, heads, dim).swapaxes(-3, -2)


SIDE_BY_SIDE = Packing(_load_side_by_side, lambda x, _: (x.swapaxes(-3, -2).reshape(*x.shape[:-3], -1),))
"""``[D, N, 3, H]`` of ``[D, 3 N H]``: all queries, then all keys, then all values; or biases without D."""


def array(*names: str, packing: Packing = SAME, optional: bool = False) -> Source:
    """Returns the source of one array."""
    return Source(names, packing, optional)


def table(name: str, packing: Packing = SAME) -> Table:
    """Returns the source of a table of vectors."""
    return {"table": array(f"{name}.weight", packing=packing)}


def linear(name: str, packing: Packing = TRANSPOSED) -> Table:
    """Returns the sources of a linear layer."""
    return {"kernel": array(f"{name}.weight", packing=packing), "bias": array(f"{name}.bias")}


def norm(name: str) -> Table:
    """Returns the sources of a norm."""
    return {"scale": array(f"{name}.weight"), "bias": array(f"{name}.bias")}


def self_attention(query: str, key: str, value: str, output: str) -> Table:
    """Returns the sources of self-attention, from the names of four linear layers."""
    names = query, key, value
    return {
        "kernel": array(*(f"{name}.weight" for name in names), packing=GROUPS),
        "bias": array(*(f"{name}.bias" for name in names), packing=GROUPS),
        "output": linear(output, FROM_HEADS),
    }


def cross_attention(query: str, key: str, value: str, output: str) -> Table:
    """Returns the sources of cross-attention, from the names of four linear layers."""
    return {
        "query": array(f"{query}.weight", packing=TO_HEADS),
        "query_bias": array(f"{query}.bias", packing=TO_HEADS),
        "key_value": array(f"{key}.weight", f"{value}.weight", packing=GROUPS),
        "key_value_bias": array(f"{key}.bias", f"{value}.bias", packing=GROUPS),
        "output": linear(output, FROM_HEADS),
    }


def matched(table: Table, leaves: Mapping[str, Any], path: str = "") -> Iterator[tuple[Leaf, Source]]:
    """Yields each parameter's shape and its source; sources without a parameter in the model are skipped.

    Args:
      leaves: a tree of shapes.
    """
    for name, leaf in leaves.items():
        source, place = table.get(name), f"{path}{name}"
        if isinstance(leaf, Mapping) and isinstance(source, Mapping):
            yield from matched(source, leaf, f"{place}.")
        elif isinstance(source, Source) and not isinstance(leaf, Mapping):
            yield leaf, source
        else:
            raise ValueError(f"no tensor is known for the parameter {place}")
