"""The training state, carried from step to step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import optax

if TYPE_CHECKING:
    from jaxformer.sharding import Placement


Tree = Any
"""A pytree of arrays, such as parameters, a batch or a state, or of their shapes; JAX has no type for it."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a step reads and writes: a pytree of arrays, saved and sharded as one."""

    step: jax.Array  # int32 scalar: the number of completed steps
    params: Tree  # master weights, usually float32
    optimizer: Tree  # optax state
    ema_params: Tree | None  # exponential moving average of the parameters, at least float32, or None
    key: jax.Array  # the run's key, raw uint32; step i uses fold_in(key, i)

    def __repr__(self) -> str:
        """Returns the step and the number of parameters; all values would fill a notebook."""
        leaves = jax.tree.leaves(self.params)
        sizes = [leaf.size for leaf in leaves if hasattr(leaf, "size")]
        about = f"{sum(sizes):,} parameters" if len(sizes) == len(leaves) else f"{len(leaves)} leaves without sizes"
        try:
            return f"TrainState(step={int(self.step)}, {about})"
        except (TypeError, RuntimeError):  # it is abstract, or its memory was donated to the next state
            return f"TrainState({about})"


def create(
    init: Callable[[jax.Array], Tree],
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    *,
    ema: bool = False,
    shardings: TrainState | None = None,
) -> TrainState:
    """Returns a new state, from one jitted function; with `shardings`, every leaf is created on its devices.

    The moments and the moving average of parameters in bfloat16 or float16 are float32; in these dtypes, small changes
    would be lost.

    Args:
      init: a function from a key to parameters; it gets a part of `key`, whose rest is for the steps. To start
        from given parameters, such as pretrained ones, pass ``lambda key: params``; the state holds a copy of them.
      ema: keep a moving average of the parameters.
      shardings: a TrainState of shardings, one for each leaf.

    Raises:
      TypeError: `init` is not a function but, for example, parameters or the network itself.
      ValueError: the key has another implementation than the default, by which the steps read the state's raw key.

    >>> params = {"kernel": jnp.ones((2, 3))}
    >>> create(lambda key: params, optax.sgd(0.1), jax.random.key(0)).params["kernel"].shape
    (2, 3)
    """

    if not callable(init):
        raise TypeError(f"init must be a function, net.init or lambda key: params, got a {type(init).__name__}")
    if (kind := str(jax.random.key_impl(key))) != (default := jax.config.jax_default_prng_impl):
        how = f"call jax.config.update('jax_default_prng_impl', {kind!r}) first"
        raise ValueError(f"the key is of {kind}, but steps would read it as one of {default}; {how}")

    def build(key: jax.Array) -> TrainState:
        init_key, step_key = jax.random.split(key)
        params = init(init_key)
        wide = jax.tree.map(widened, params)
        return TrainState(
            step=jnp.int32(0),
            params=params,
            optimizer=optimizer.init(wide),
            ema_params=jax.tree.map(jnp.copy, wide) if ema else None,
            key=jax.random.key_data(step_key),
        )

    return jax.jit(build, out_shardings=shardings)(key)


class Initialized(Protocol):
    """The parts of a network that `create_sharded` needs; a `Pure` model has them."""

    @property
    def shapes(self) -> Tree:
        """The shapes of the parameters."""
        ...

    @property
    def axes(self) -> Tree:
        """The logical axes of the parameters."""
        ...

    def init(self, key: jax.Array) -> Tree:
        """Returns new parameters."""
        ...


def create_sharded(
    net: Initialized,
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    *,
    placement: Placement,
    ema: bool = False,
) -> tuple[TrainState, TrainState]:
    """Returns a new state on a mesh, and the shardings of its leaves, for `make_step`.

    Every leaf is created on its devices, so no device ever holds a whole parameter that the mesh shards.

    Args:
      net: a network, such as ``pure(models.LanguageModel, config)``.
      placement: the mesh, and the table that places logical axes on it.
      ema: keep a moving average of the parameters.

    Raises:
      ConfigError: the mesh axes of a dimension do not divide it; the message names the parameter.
    """
    make = functools.partial(create, net.init, optimizer, key, ema=ema)
    shardings = placement.state(make, placement.params(net.shapes, net.axes), optimizer)
    return make(shardings=shardings), shardings


def best_params(state: TrainState) -> Tree:
    """Returns the parameters to evaluate: the moving average if the state has one."""
    return state.params if state.ema_params is None else state.ema_params


def widened(x: jax.Array) -> jax.Array:
    """Returns an array in float32 if it has a narrower floating-point dtype, and otherwise as it is.

    >>> widened(jnp.ones(2, jnp.bfloat16)).dtype, widened(jnp.ones(2, int)).dtype
    (dtype('float32'), dtype('int32'))
    """
    dtype = jnp.result_type(x)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return x.astype(jnp.float32)
    return x
