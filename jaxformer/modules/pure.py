"""Modules as pure functions: a module class and its configuration become functions of a plain dict of parameters.

Everything outside `modules` and `models` sees parameters as one nested dict of arrays. Flax NNX only holds and names
parameters; transformations are JAX's own (``jax.jit``, ``jax.grad``, ``jax.vmap``, ``jax.lax.scan``).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from flax import nnx

from jaxformer.axes import parameter_name
from jaxformer.reprs import brief_with_methods

Params = dict[str, Any]
"""A nested dict of arrays."""

ModelT_co = TypeVar("ModelT_co", bound=Callable[..., Any], covariant=True)
ConfigT_co = TypeVar("ConfigT_co", bound=Hashable, covariant=True)
ModuleT = TypeVar("ModuleT")


@dataclasses.dataclass(frozen=True)
class Pure(Generic[ModelT_co, ConfigT_co]):
    """A model as pure functions; see `pure`. It is hashable and allocates nothing."""

    model: Callable[..., ModelT_co]
    config: ConfigT_co
    parts: tuple[tuple[str, Hashable], ...] = dataclasses.field(default=(), kw_only=True)
    """The other keyword arguments of the model, sorted by name."""

    __repr__ = brief_with_methods

    def init(self, key: jax.Array) -> Params:
        """Returns new parameters. Under ``jax.jit`` with ``out_shardings`` they are created sharded."""
        return nnx.to_pure_dict(self._split(key)[1])

    def bind(self, params: Params) -> ModelT_co:
        """Returns the model with these parameters; its methods are called as usual.

        Inside a traced function, binding has no run-time cost. Bind inside the function that is transformed, so that
        the parameters are among its arguments::

            jax.jit(lambda params, source: net.bind(params).encode(source))

        Raises:
          ValueError: the parameters do not belong to this model; the message has the path and the actual and expected
            shapes.
        """
        check_shapes(params, self.shapes, self.axes)
        abstract: _Abstract[ModelT_co] = _abstract(self)
        return nnx.merge(abstract.graph, params, abstract.constants)

    def apply(self, params: Params, *args: object, **kwargs: object) -> Any:
        """Calls the model with these parameters: ``bind(params)(*args, **kwargs)``."""
        return self.bind(params)(*args, **kwargs)

    @property
    def shapes(self) -> Params:
        """The parameters' shapes and dtypes, as ``jax.ShapeDtypeStruct``."""
        return _abstract(self).shapes

    @property
    def num_parameters(self) -> int:
        """The number of parameters; nothing is allocated.

        >>> from jaxformer import models
        >>> f"{pure(models.EncoderDecoder, models.EncoderDecoderConfig(37_000, 37_000)).num_parameters:,}"
        '63,045,632'
        """
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.shapes))

    @property
    def axes(self) -> Params:
        """The logical axis names of each parameter (see `jaxformer.axes`); "layers" comes first in a stack."""
        return _abstract(self).axes

    def _split(self, key: jax.Array) -> tuple[nnx.GraphDef[ModelT_co], nnx.State, nnx.State]:
        return split_params(self.model(self.config, **dict(self.parts), rngs=nnx.Rngs(params=key)))


@dataclasses.dataclass(frozen=True)
class _Abstract(Generic[ModelT_co]):
    graph: nnx.GraphDef[ModelT_co]
    shapes: Params
    axes: Params
    constants: Params


@functools.lru_cache(maxsize=64)
def _abstract(net: Pure[ModelT_co, Hashable]) -> _Abstract[ModelT_co]:
    """Returns the graph, shapes and axes of a model, cached for equal models because tracing takes 0.1 s."""
    found: list[tuple[nnx.GraphDef[ModelT_co], Params, bool]] = []

    def build() -> Params:
        graph, state, constants = net._split(jax.random.key(0))
        names = jax.tree.map(_names, state, is_leaf=lambda x: isinstance(x, nnx.Variable))
        found.append((graph, nnx.to_pure_dict(names), bool(constants)))
        return nnx.to_pure_dict(state)

    shapes = jax.eval_shape(build)
    graph, axes, has_constants = found[0]
    return _Abstract(graph, shapes, axes, _constants(net) if has_constants else {})


def _constants(net: Pure[Callable[..., object], Hashable]) -> Params:
    """Returns the constants of a model as NumPy arrays; the compiler leaves out all operations of its parameters."""
    compute = jax.jit(lambda key: nnx.to_pure_dict(net._split(key)[2]))
    with jax.ensure_compile_time_eval():
        values, others = (jax.device_get(compute(jax.random.key(seed))) for seed in (0, 1))
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(values), jax.tree.leaves(others), strict=True):
        if not np.array_equal(x, y, equal_nan=bool(np.issubdtype(x.dtype, np.inexact))):
            raise ValueError(
                f"the constant {parameter_name(path)} differs between seeds, but an nnx.Variable is not saved with the "
                "parameters; draw it with a key of its own, such as jax.random.key(0), or make it an nnx.Param"
            )
    return values


def pure(model: Callable[..., ModelT_co], config: ConfigT_co, /, **parts: Any) -> Pure[ModelT_co, ConfigT_co]:
    """Returns a module class ``model(config, *, rngs)`` as functions over a plain nested dict of arrays.

    Every ``nnx.Param`` in the module, at any depth, is a parameter, so Flax layers can be used. The metadata `axes`
    names the dimensions of a parameter, ``nnx.Param(x, axes=("model", "heads"))``; `jaxformer.sharding` places arrays
    on a mesh by these names (see `jaxformer.axes`). A parameter without `axes` is not sharded. An ``nnx.Variable`` (of
    no subclass) is a constant: the model computes it from its configuration, so it is no parameter, is neither
    trained nor saved, and must not depend on `rngs`. Other state, such as the
    statistics of ``nnx.BatchNorm`` or the counter of ``nnx.Dropout``, is not supported: functions of parameters and
    inputs have nowhere to keep it. `functional.dropout` takes a key as an argument instead.

    Args:
      parts: other keyword arguments of the model, such as ``attention=`` for a custom attention function. Equal models,
        configurations and parts give equal results.

    Raises:
      TypeError: the model takes no such keyword argument, a part is not hashable, or the model is a module instance
        instead of its class; when used, the module holds state other than parameters.

    >>> from jaxformer import functional, models
    >>> config = models.EncoderDecoderConfig(100, 100, d_model=16, num_heads=2, d_ff=32)
    >>> net = pure(models.EncoderDecoder, config)
    >>> params = net.init(jax.random.key(0))
    >>> source, target = jax.numpy.ones((1, 5), int), jax.numpy.ones((1, 3), int)
    >>> net.apply(params, source, target).shape
    (1, 3, 100)
    >>> net.bind(params).encode(source).states.shape
    (1, 5, 16)
    >>> sharper = functools.partial(functional.attention, scale=1.0)
    >>> pure(models.EncoderDecoder, config, attention=sharper).apply(params, source, target).shape
    (1, 3, 100)
    """
    if isinstance(model, nnx.Module):
        name = type(model).__name__
        raise TypeError(f"pure takes the class {name} and a configuration, not a {name} that has its parameters")
    if parts:
        _check_parts(model, parts)
    return Pure(model, config, parts=tuple(sorted(parts.items())))


def _check_parts(model: Callable[..., object], parts: Mapping[str, object]) -> None:
    """Checks names and values now, because the model may be created much later."""
    name = getattr(model, "__name__", model)
    # The signature of a module class is that of its metaclass.
    function = functools.partial(model.__init__, None) if isinstance(model, type) else model
    try:
        inspect.signature(function).bind(None, rngs=None, **parts)
        hash(tuple(parts.values()))
    except TypeError as error:
        raise TypeError(f"the parts of {name} must be hashable arguments of it: {error}") from None


def check_shapes(params: object, expected: Params, axes: Params | None = None) -> None:
    """Checks the paths and shapes of parameters; NNX itself would accept a wrong shape.

    Args:
      axes: the names of dimensions, with which a table of the vocabulary may be its copies (`sharding.with_copies`).
    """
    got = {jax.tree_util.keystr(path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(params)}
    want = {jax.tree_util.keystr(path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(expected)}
    names = jax.tree_util.tree_leaves_with_path(axes, is_leaf=lambda x: isinstance(x, tuple))
    tables = {jax.tree_util.keystr(path) for path, of_leaf in names if "vocab" in of_leaf}
    for path in sorted(got.keys() | want.keys()):
        if path in tables and len(got.get(path, ())) == 4 and got[path][2:] == want.get(path):
            continue
        if got.get(path) != want.get(path):
            problem = f"has shape {got[path]}" if path in got else "is missing"
            raise ValueError(
                f"these parameters do not belong to this model: params{path} {problem}, "
                f"the model has {want.get(path, 'nothing')}; parameters are a nested dict of the model's names"
            )


def split_params(module: ModuleT) -> tuple[nnx.GraphDef[ModuleT], nnx.State, nnx.State]:
    """Returns the graph of a module, its parameters and its constants, which are of type ``nnx.Variable`` itself."""
    is_constant = lambda path, x: getattr(x, "type", type(x)) is nnx.Variable
    graph, params, constants, others = nnx.split(module, nnx.Param, is_constant, ...)
    if refused := nnx.to_flat_state(others):
        text = ", ".join(f"{'.'.join(map(str, path))} ({type(x).__name__})" for path, x in refused)
        raise TypeError(
            f"{type(module).__name__} holds state that is not an nnx.Param: {text}. Pure functions have nowhere to "
            "keep it: use layers without state, such as a LayerNorm for a BatchNorm, and functional.dropout for "
            "nnx.Dropout. Keep a constant array in an nnx.Variable"
        )
    return graph, params, constants


def _names(variable: nnx.Variable) -> nnx.Variable:
    """Returns the variable with its value replaced by its axis names, "layers" for stacked dimensions."""
    names = variable.get_metadata().get("axes")
    if names is None:
        return variable.replace((None,) * variable[...].ndim)
    stacked = variable[...].ndim - len(names)
    return variable.replace(("layers",) * stacked + tuple(names))
