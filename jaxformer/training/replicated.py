"""Data parallelism with `jax.pmap` and explicit collectives; `make_step` on a mesh computes the same."""

from __future__ import annotations

import functools

import jax
import optax

from jaxformer.training.state import TrainState, Tree
from jaxformer.training.step import Loss, Metrics, TrainStep, checked_loss, mean_gradient


def make_replicated_step(loss: Loss, optimizer: optax.GradientTransformation) -> TrainStep:
    """Returns a ``step(state, batch) -> (state, metrics)`` over all local devices; `make_step` is for a mesh.

    Along a new first dimension, the state is replicated and the batch is split:
    ``jax.tree.map(lambda x: jnp.stack([x] * n), state)`` and ``x.reshape(n, -1, *x.shape[1:])``. Each device draws its
    own dropout; without dropout, the results equal those of `make_step`, except for losses that are not sums over rows:
    the load-balancing loss of experts is computed for each device's shard.

    Raises:
      ValueError: when called, a state with a moving average, which only `make_step` supports; a loss that returns
        something that `make_step` does not accept.

    >>> import jax.numpy as jnp
    >>> from jaxformer.training.state import create
    >>> square = lambda p, x, key: (((p - x) ** 2).sum(), jnp.float32(x.size), {})
    >>> n, sgd = jax.local_device_count(), optax.sgd(0.5)
    >>> state = jax.tree.map(lambda x: jnp.stack([x] * n), create(lambda key: jnp.float32(0), sgd, jax.random.key(0)))
    >>> state, metrics = make_replicated_step(square, sgd)(state, jnp.full((n, 3), 2.0))
    >>> state.params[0].item(), metrics["count"][0].item() == 3 * n
    (2.0, True)
    """

    @functools.partial(jax.pmap, axis_name="devices", donate_argnums=0)
    def step(state: TrainState, batch: Tree) -> tuple[TrainState, Metrics]:
        if state.ema_params is not None:
            raise ValueError("make_replicated_step keeps no moving average: create the state with ema=False")
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        key = jax.random.fold_in(key, jax.lax.axis_index("devices"))
        value_and_gradient = jax.value_and_grad(checked_loss(loss), has_aux=True)
        (total, (count, metrics)), gradient = value_and_gradient(state.params, batch, key)
        # Divided after summing over devices, because their shards of a batch may have different numbers of tokens.
        total, count, metrics, gradient = jax.lax.psum((total, count, metrics, gradient), "devices")
        gradient = mean_gradient(gradient, count)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes float32 with its integer step count
            updates, moments = optimizer.update(gradient, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
        metrics = {**metrics, "loss_sum": total, "count": count, "gradient_norm": optax.tree.norm(gradient)}
        return TrainState(state.step + 1, params, moments, None, state.key), metrics

    return step
