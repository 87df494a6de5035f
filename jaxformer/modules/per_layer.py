"""Attention that each layer of a stack makes for itself, with values of its own."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.dropout import fold_in_name
from jaxformer.modules.attention_function import AttentionFunction
from jaxformer.modules.pure import split_params


@dataclasses.dataclass(frozen=True)
class PerLayer:
    """The result of `per_layer`, which layers replace with what the factory makes."""

    factory: Callable[[nnx.Rngs, int], AttentionFunction]

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("per_layer(...) is no attention function itself; give it to a layer or a model as attention=")


def per_layer(factory: Callable[[nnx.Rngs, int], AttentionFunction]) -> PerLayer:
    """Returns an attention for a layer, a block or a model that each layer makes by ``factory(rngs, layer)``.

    `rngs` has a key of its own in each layer, so random initial values differ between layers and between seeds. `layer`
    is a Python int, 0, 1, ...; the encoder and the decoder both count from 0, and it is 0 outside a stack. The
    self-attention and the cross-attention of a layer each get their own module, by two calls with different keys. (A
    module that is given as ``attention=`` itself starts with equal values in every layer.)

    All layers must have one structure, because a stack scans over them: they may differ only in the values of arrays.
    An array that is trained is an ``nnx.Param``, whose `axes` name its dimensions as in `pure`. A constant, such as one
    that depends on `layer`, is an ``nnx.Variable``: it is computed from the configuration whenever a model is bound, is
    no parameter, and is neither trained nor saved.

    Args:
      factory: a function, or a class of modules; it returns a module or a function.

    Raises:
      ValueError: when the layers are made, two of them differ in their structure; the message names both.

    >>> from jaxformer import functional as F, models, pure
    >>> class Sharpened(nnx.Module):
    ...     def __init__(self, rngs, layer):
    ...         self.factor = nnx.Param(1 + 0.1 * jax.random.normal(rngs.params(), (2,)), axes=("heads",))
    ...         self.depth = nnx.Variable(jnp.float32(1 + layer))
    ...     def __call__(self, query, key, value, **options):
    ...         factor = self.factor[...] / self.depth[...]
    ...         return F.attention(query * factor[None, None, :, None], key, value, **options)
    >>> config = models.LanguageModelConfig(20, num_layers=3, d_model=8, num_heads=2, d_ff=16)
    >>> net = pure(models.LanguageModel, config, attention=per_layer(Sharpened))
    >>> params = net.init(jax.random.key(0))
    >>> jax.tree.map(jnp.shape, params["decoder"]["stack"]["layers"]["attention"]["attention"])
    {'factor': (3, 2)}
    >>> net.apply(params, jnp.ones((1, 4), int)).shape
    (1, 4, 20)
    """
    return PerLayer(factory)


class _Stack(NamedTuple):
    keys: jax.Array  # of all layers
    layer: jax.Array  # the index of the block that is being built, which is mapped over
    calls: itertools.count[int]


_stack: contextvars.ContextVar[_Stack | None] = contextvars.ContextVar("stack", default=None)


@contextlib.contextmanager
def building(keys: jax.Array, layer: jax.Array) -> Iterator[None]:
    """Lets a block that is built inside choose the attention of layer `layer`, a traced index, in `for_this_layer`."""
    token = _stack.set(_Stack(keys, layer, itertools.count()))
    try:
        yield
    finally:
        _stack.reset(token)


def for_this_layer(attention: AttentionFunction, rngs: nnx.Rngs) -> AttentionFunction:
    """Returns the attention of the layer that is being built: the one that a `per_layer` makes, or the one given.

    The blocks of a stack are built by one call, mapped over their keys, but `per_layer` makes the attentions of all
    layers one by one; a block takes one of these by its index.
    """
    if not isinstance(attention, PerLayer):
        return attention
    stack = _stack.get()
    if stack is None:
        return attention.factory(nnx.Rngs(rngs.params()), 0)
    name = f"attention {next(stack.calls)}"
    keys = [fold_in_name(key, name) for key in stack.keys]
    made = [attention.factory(nnx.Rngs(key), i) for i, key in enumerate(keys)]
    for i, other in enumerate(made[1:], 1):
        if _structure(other) != _structure(made[0]):
            raise ValueError(
                f"per_layer must make one structure for all layers, because a stack scans over them, but layers 0 and "
                f"{i} differ in an attribute, or in the shape, dtype or kind of an array. A constant that differs by "
                "layer must be an array in an nnx.Variable (not an nnx.Param), which is kept for each layer and not "
                "trained"
            )
    if not isinstance(made[0], nnx.Module):
        return made[0]
    states = [tuple(nnx.to_pure_dict(x) for x in split_params(module)[1:]) for module in made]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    return nnx.merge(split_params(made[0])[0], *jax.tree.map(lambda x: x[stack.layer], stacked))


def _structure(attention: AttentionFunction) -> object:
    """Returns everything that must be equal in all layers: all but the values of arrays."""
    if isinstance(attention, nnx.Module):
        graph, state = nnx.split(attention)
        return graph, jax.tree.map(lambda x: (x.shape, x.dtype), nnx.to_pure_dict(state))
    if isinstance(attention, functools.partial):
        return attention.func, attention.args, attention.keywords
    return attention
