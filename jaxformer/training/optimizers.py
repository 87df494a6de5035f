"""Optimizers from configuration, as optax gradient transformations."""

from __future__ import annotations

import math

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from jaxformer.axes import Axes, parameter_name
from jaxformer.training import schedules
from jaxformer.training.config import (
    ConstantRate,
    CosineDecay,
    InverseSqrtDecay,
    LinearDecay,
    MuonConfig,
    OptimizerConfig,
)

BIASES = "sinks", "gain", "baseline", "positions/content", "positions/position"
"""Endings of the names of parameters that are biases, scales or statistics under other names."""


def make_schedule(config: OptimizerConfig, *, steps: int) -> schedules.Schedule:
    """Returns the learning rate schedule for `steps` updates.

    Raises:
      ConfigError: the schedule's warm-up is not shorter than its decay, or `cooldown` is not in [0, 1].
    """
    rate = _schedule(config, steps)
    if not config.cooldown:
        return rate
    return schedules.cooldown(rate, steps, max(1, round(steps * config.cooldown)))


def _schedule(config: OptimizerConfig, steps: int) -> schedules.Schedule:
    peak, warmup = config.learning_rate, config.warmup_steps
    match config.schedule:
        case InverseSqrtDecay():
            return schedules.inverse_sqrt(peak, max(warmup, 1))
        case LinearDecay(decay_steps):
            return schedules.linear(peak, warmup, decay_steps or steps)
        case CosineDecay(decay_steps):
            return schedules.cosine(peak, warmup, decay_steps or steps)
        case ConstantRate():
            return schedules.constant(peak, warmup)


def make_optimizer(
    config: OptimizerConfig, *, steps: int, axes: optax.Params | None = None
) -> optax.GradientTransformation:
    """Returns clipping, Adam or Muon, weight decay and schedule in one chain.

    Args:
      axes: the logical axis names of each parameter, as in `Pure.axes`. Muon needs them: they tell which dimensions of
        an array are the rows and columns of a matrix.

    The parameters may be a nested dict or, as in ``nnx.Optimizer``, an ``nnx.State``.

    Raises:
      ValueError: the kind is Muon and `axes` are missing; when used, `axes` lack a parameter.
    """
    parts = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    adam = optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.epsilon)
    if isinstance(config, MuonConfig):
        if axes is None:
            raise ValueError("Muon needs the axis names of the parameters; give axes=net.axes")
        parts.append(_muon(config.momentum, adam, axes))
    else:
        parts.append(adam)
    if config.weight_decay:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=_decayed))
    parts.append(optax.scale_by_learning_rate(make_schedule(config, steps=steps)))
    return optax.chain(*parts)


def _muon(momentum: float, adam: optax.GradientTransformation, axes: optax.Params) -> optax.GradientTransformation:
    """Returns Muon for the kernels of layers and `adam` for embeddings, biases, norms and projections to a vocabulary.

    Updates have the root mean square of Adam's updates (0.2, Liu et al. 2025), so Adam's learning rates still work.
    """
    leaves = jax.tree_util.tree_leaves_with_path(axes, is_leaf=lambda x: isinstance(x, tuple))
    named = {parameter_name(path): names for path, names in leaves}
    matrices = {name: dims for name, names in named.items() if (dims := matrix_dimensions(names))}

    def kind(path: jax.tree_util.KeyPath, _: object) -> str:
        if (name := parameter_name(path)) not in named:
            raise ValueError(f"axes do not have the parameter {name}; they have {', '.join(named)}")
        return "muon" if name in matrices else "adam"

    # Callables, because some parameters may be masked.
    kinds = lambda tree: jax.tree_util.tree_map_with_path(kind, tree)
    dimensions = lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: matrices[parameter_name(path)], tree)

    def match_adam(updates: optax.Updates, params: optax.Params | None = None) -> optax.Updates:
        del params

        def scaled(path: jax.tree_util.KeyPath, x: jax.Array) -> jax.Array:
            dims = matrices[parameter_name(path)]
            size = lambda axes: math.prod(x.shape[axis] for axis in axes)
            return 0.2 * math.sqrt(max(size(dims.reduction_axis), size(dims.output_axis))) * x

        return jax.tree_util.tree_map_with_path(scaled, updates)

    muon = optax.chain(scale_by_muon(beta=momentum, weight_dimension_numbers=dimensions), optax.stateless(match_adam))
    return optax.partition({"muon": muon, "adam": adam}, kinds)


def matrix_dimensions(names: Axes) -> MuonDimensionNumbers | None:
    """Returns the dimensions of an array that are the rows and columns of a layer's matrix; None if it has no matrix.

    Heads and their features are one side of a matrix. Each layer, expert and offset of a convolution has a matrix, and
    so have keys and values. Queries have one for each query head that a key head serves, so with fewer key heads than
    query heads, W^Q is several matrices: the dimension "kv" holds these queries, then the key and the value.

    >>> matrix_dimensions(("layers", "model", "heads", "kv", "head_dim"))
    MuonDimensionNumbers(reduction_axis=(1,), output_axis=(2, 4))
    >>> matrix_dimensions((None, None, "model", "hidden"))
    MuonDimensionNumbers(reduction_axis=(2,), output_axis=(3,))
    >>> matrix_dimensions(("vocab", "model")), matrix_dimensions(("layers", "model"))
    (None, None)
    """
    rows = tuple(dim for dim, name in enumerate(names) if name == "model")
    columns = tuple(dim for dim, name in enumerate(names) if name in ("heads", "head_dim", "hidden"))
    if len(rows) != 1 or not columns:
        return None
    return MuonDimensionNumbers(*sorted((rows, columns)))


def freeze(optimizer: optax.GradientTransformation, frozen: optax.Params) -> optax.GradientTransformation:
    """Returns an optimizer that never updates the parameters where `frozen` is True, and keeps no moments for them."""
    trained = jax.tree.map(lambda x: not x, frozen)
    return optax.chain(optax.masked(optimizer, trained), optax.masked(optax.set_to_zero(), frozen))


def averaging(
    optimizer: optax.GradientTransformation, averages: optax.Params, *, decay: float
) -> optax.GradientTransformation:
    """Returns an optimizer that updates the parameters where `averages` is True by ``decay - 1`` times their gradient.

    If their loss is ``(parameter - x) ** 2 / 2``, they are exponential moving averages of x.
    """
    others = jax.tree.map(lambda x: not x, averages)
    return optax.chain(optax.masked(optimizer, others), optax.masked(optax.sgd(1 - decay), averages))


def _decayed(params: optax.Params) -> optax.Params:
    """Returns False for biases, scales and those in `BIASES`, stacked or not, and True for other parameters."""

    def decays(path: jax.tree_util.KeyPath, _: object) -> bool:
        name = "/" + parameter_name(path)
        named_so = any(part.endswith(("bias", "scale")) for part in name.split("/"))
        return not named_so and not name.endswith(tuple(f"/{end}" for end in BIASES))

    return jax.tree_util.tree_map_with_path(decays, params)
