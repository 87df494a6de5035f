"""Low-rank adapters for the matrices of any network (Hu et al. 2022, LoRA), and selection of parameters by patterns."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.axes import parameter_name
from jaxformer.modules.layers import normal
from jaxformer.modules.pure import ConfigT_co, ModelT_co, Params, Pure, check_shapes

ADAPTERS = "lora"
"""The key of the adapters in the dict of parameters."""


def matching(params: object, patterns: Sequence[str]) -> Any:
    """Returns True for each parameter whose name matches a pattern, where ``*`` stands for any text.

    Args:
      params: a nested dict, or an ``nnx.State`` such as ``nnx.Optimizer`` has.

    >>> matching({"encoder": {"norm": 1, "kernel": 2}, "output": 3}, ["encoder/n*"])
    {'encoder': {'kernel': False, 'norm': True}, 'output': False}

    Raises:
      ValueError: a pattern matches no parameter; the message lists the names.
    """
    names = [parameter_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no parameter matches {pattern!r}; the parameters are {', '.join(names)}")
    fits = lambda path, _: any(fnmatch.fnmatchcase(parameter_name(path), pattern) for pattern in patterns)
    return jax.tree_util.tree_map_with_path(fits, params)


@dataclasses.dataclass(frozen=True)
class LoRA(Pure[ModelT_co, ConfigT_co]):
    """A network with ``W + alpha / rank A B`` in place of some matrices W; see `lora`."""

    rank: int
    targets: tuple[str, ...]
    alpha: float

    @functools.cached_property
    def base(self) -> Pure[ModelT_co, ConfigT_co]:
        """The network without adapters."""
        return Pure(self.model, self.config, parts=self.parts)

    def init(self, key: jax.Array) -> Params:
        """Returns new parameters, with adapters under "lora"; B is 0, so the results equal the base network's."""
        return self.base.init(key) | {ADAPTERS: self._adapters(functools.partial(_initial, key))}

    def bind(self, params: Params) -> ModelT_co:
        """Returns the model with the merged parameters; gradients flow through them to the adapters."""
        check_shapes(params, self.shapes, self.axes)
        return self.base.bind(self.merged(params))

    def merged(self, params: Params) -> Params:
        """Returns parameters with which the network without adapters computes exactly the same."""
        base = {name: value for name, value in params.items() if name != ADAPTERS}
        return _added(base, params[ADAPTERS], self.alpha / self.rank)

    @functools.cached_property
    def shapes(self) -> Params:
        """The shapes and dtypes of the parameters, adapters included."""
        shape = lambda size: jax.ShapeDtypeStruct(size, jnp.dtype("float32"))
        return self.base.shapes | {ADAPTERS: self._adapters(lambda _, a, b: {"a": shape(a), "b": shape(b)})}

    @functools.cached_property
    def axes(self) -> Params:
        """The logical axis names of each parameter; adapters are small, so only their layer dimension is named."""
        names = lambda size: (*("layers",) * (len(size) - 2), None, None)
        return self.base.axes | {ADAPTERS: self._adapters(lambda _, a, b: {"a": names(a), "b": names(b)})}

    def _adapters(self, make: Callable[[str, tuple[int, ...], tuple[int, ...]], Params]) -> Params:
        """Returns ``make(name, shape of A, shape of B)`` for each target, under its path."""
        shapes, names = self.base.shapes, self.base.axes
        tree: Params = {}
        chosen = jax.tree_util.tree_leaves_with_path(matching(shapes, self.targets))
        axes = jax.tree.leaves(names, is_leaf=lambda x: isinstance(x, tuple))
        for (path, fits), shape, dims in zip(chosen, jax.tree.leaves(shapes), axes, strict=True):
            layers = shape.shape[: dims.count("layers")]
            vector = len(shape.shape) - len(layers) < 2 or path[-1].key.endswith(("bias", "scale"))
            if fits and not vector:
                rows, columns = _as_matrix(shape.shape[len(layers) :], dims[len(layers) :])
                sizes = (*layers, rows, self.rank), (*layers, self.rank, columns)
                part = tree
                for key in path[:-1]:
                    part = part.setdefault(key.key, {})
                part[path[-1].key] = make(parameter_name(path), *sizes)
        if not tree:
            raise ValueError(f"the adapters' targets {', '.join(self.targets)} match no matrix, only vectors")
        return tree


def lora(
    net: Pure[ModelT_co, ConfigT_co], *, rank: int, targets: Sequence[str], alpha: float = 16.0
) -> LoRA[ModelT_co, ConfigT_co]:
    """Returns a network with the parameters of `net`, under the same paths, and additional low-rank adapters.

    A kernel with a dimension of heads is treated as a matrix between the model dimension and all heads; queries, keys
    and values share one kernel, so they share one A. Each of the stacked layers has its own adapters. To train only the
    adapters, freeze the parameters of `net`.

    Args:
      rank: the number of columns of A and of rows of B.
      targets: patterns of the names of the matrices, such as ``"encoder/*/attention/*"``; vectors are skipped.
      alpha: the product A B is multiplied by ``alpha / rank``.

    Raises:
      ValueError: `rank` is less than 1; when used, a target matches no parameter.
      TypeError: `net` has adapters already.

    >>> from jaxformer import models, pure
    >>> net = pure(models.LanguageModel, models.LanguageModelConfig(20, d_model=8, num_heads=2, d_ff=16, num_layers=3))
    >>> adapted = lora(net, rank=2, targets=["*/attention/kernel"])
    >>> params, tokens = adapted.init(jax.random.key(0)), jnp.ones((1, 5), int)
    >>> [x.shape for x in jax.tree.leaves(params["lora"])]
    [(3, 8, 2), (3, 2, 24)]
    >>> bool((adapted.apply(params, tokens) == net.apply(adapted.merged(params), tokens)).all())
    True
    """
    if isinstance(net, LoRA):
        raise TypeError("net must be a network without adapters: give net.base, with the parameters of net.merged")
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}")
    return LoRA(net.model, net.config, rank, tuple(targets), alpha, parts=net.parts)


def _as_matrix(shape: tuple[int, ...], names: tuple[str | None, ...]) -> tuple[int, int]:
    """Returns the shape of an array as a matrix: the model dimension, and the product of the other dimensions.

    If neither the first nor the last dimension is the model's, it is split into rows and columns that are as equal as
    possible.
    """
    splits = [(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(1, len(shape))]
    if names[0] == "model":
        return splits[0]
    return splits[-1] if names[-1] == "model" else min(splits, key=sum)


def _initial(key: jax.Array, name: str, a: tuple[int, ...], b: tuple[int, ...]) -> Params:
    """Returns A, with standard deviation ``rows ** -0.5``, and B, which is 0."""
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    return {"a": normal(key, a, deviation=a[-2] ** -0.5), "b": jnp.zeros(b, jnp.float32)}


def _added(params: Params, adapters: Params, scale: float) -> Params:
    result = dict(params)
    for name, part in adapters.items():
        value = params[name]
        if isinstance(value, dict):
            result[name] = _added(value, part, scale)
        else:
            # The scale is applied first: a product and a sum may be rounded once or twice, depending on the program.
            product = jnp.matmul(scale * part["a"], part["b"])
            copied = product.size < value.size  # [G, C, V, D]: see `sharding.with_copies`
            result[name] = value + product.reshape((1, 1, *value.shape[2:]) if copied else value.shape)
    return result
