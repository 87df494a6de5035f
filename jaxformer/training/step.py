"""One update of the parameters: as one compiled program for each shape of batch, or by `jax.pmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from jaxformer import hardware
from jaxformer.errors import ConfigError, JaxformerError
from jaxformer.training.phase_timer import PhaseTimer
from jaxformer.training.schedules import Schedule
from jaxformer.training.state import TrainState, Tree, widened

Metrics = dict[str, jax.Array]
Sums = tuple[jax.Array, jax.Array, Metrics]
Loss = Callable[[Tree, Tree, jax.Array], Sums | tuple[jax.Array, jax.Array]]
"""``loss(params, batch, key) -> (sum, count, metrics)`` or ``(sum, count)``: sums, so that microbatches can be added.

All must be float32, so that devices reduce them together with the gradient; integers would be sent separately.
"""
TrainStep = Callable[[TrainState, Tree], tuple[TrainState, Metrics]]
OWN_METRICS = frozenset(("loss_sum", "count", "gradient_norm", "finite", "skipped", "learning_rate"))
"""The names that metrics of a loss must not have."""


def make_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    num_microbatches: int = 1,
    nonfinite: Literal["abort", "skip"] = "abort",
    ema_decay: float = 0.0,
    shardings: TrainState | None = None,
    learning_rate: Schedule | None = None,
) -> jax.stages.Wrapped:
    """Returns a jitted ``step(state, batch) -> (state, metrics)``, to which the state is donated.

    The new state reuses the memory of the old one, which must not be used again ("Array has been deleted").

    The gradient is taken of ``sum / count`` over the whole batch. Metrics: loss_sum, count, gradient_norm, finite
    (1 or 0), the metrics of the loss, skipped (1 or 0) with "skip", and learning_rate if its schedule is given.

    Args:
      loss: ``loss(params, batch, key) -> (sum, count, metrics)``, such as
        ``lambda params, batch, key: (*net.bind(params).cross_entropy(batch, labels, key=key), {})``: the sum over the
        batch and the number of what was summed, float32 scalars, and a dict of float32 sums to report. Sums of parts
        of a batch are added, so nothing is a mean. Without metrics it may return ``(sum, count)``. The `key` differs at
        each step.
      optimizer: any optax transformation, such as the result of `make_optimizer`.
      num_microbatches: number of parts into which the batch is split along its first dimension; they run one
        after another. The update is the same as with 1, in less memory, except for random draws such as dropout, and
        for losses that are not sums over rows: the load-balancing loss of experts is computed for each part.
      nonfinite: with "skip", a loss or gradient that is not finite changes only the step count, and training continues
        with the next batch; with "abort", the caller sees ``finite == 0`` and stops.
      ema_decay: decay of the moving average of a state that was created with ``ema=True``; 0 for states without one.
      shardings: a TrainState of shardings, as for `create`: the new state is placed like the old one.
      learning_rate: the optimizer's schedule, whose rate is then among the metrics. It is evaluated at the optimizer's
        count of updates or, if it keeps no count, as with ``optax.sgd(0.1)``, at the state's count of steps.

    Raises:
      ValueError: `nonfinite` is unknown, or a number is out of its range; when called, a loss whose result has another
        form, or a state with a moving average but no decay, or the reverse.
      ConfigError: when called, a batch whose first dimension is not a multiple of `num_microbatches`.

    >>> from jaxformer.training import create
    >>> loss = lambda params, batch, key: (jnp.square(params["w"] * batch - 1).sum(), jnp.float32(batch.size))
    >>> optimizer = optax.sgd(0.25)
    >>> state = create(lambda key: {"w": jnp.float32(0)}, optimizer, jax.random.key(0))
    >>> state, metrics = make_step(loss, optimizer)(state, jnp.ones(4))
    >>> float(state.params["w"]), float(metrics["loss_sum"])
    (0.5, 4.0)
    """
    if nonfinite not in ("abort", "skip"):
        raise ValueError(f"nonfinite must be abort or skip, got {nonfinite!r}")
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches must be at least 1, got {num_microbatches}")
    if not 0 <= ema_decay < 1:
        raise ValueError(f"ema_decay must be in [0, 1), got {ema_decay}")

    out_shardings = None if shardings is None else (shardings, shardings.step)

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=out_shardings)
    def step(state: TrainState, batch: Tree) -> tuple[TrainState, Metrics]:
        key = _key(state)
        total, count, metrics, gradient = _summed_gradient(loss, state.params, batch, key, num_microbatches)
        gradient = _mean_gradient(gradient, count)
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(norm) & jnp.isfinite(total)
        params, moments = _updated(state, optimizer, gradient)
        if nonfinite == "skip":
            params, moments = (
                jax.tree.map(functools.partial(jnp.where, finite), new, old)
                for new, old in ((params, state.params), (moments, state.optimizer))
            )
        ema_params = _next_average(state, params, ema_decay, finite if nonfinite == "skip" else None)
        metrics = {**metrics, "loss_sum": total, "count": count, "gradient_norm": norm}
        metrics["finite"] = finite.astype(jnp.float32)
        if nonfinite == "skip":
            metrics["skipped"] = 1 - metrics["finite"]
        if learning_rate is not None:
            metrics["learning_rate"] = learning_rate(_updates_done(state))
        return TrainState(state.step + 1, params, moments, ema_params, state.key), metrics

    return step


def make_replicated_step(loss: Loss, optimizer: optax.GradientTransformation) -> TrainStep:
    """Returns a ``step(state, batch) -> (state, metrics)`` over all local devices, by `jax.pmap` and collectives.

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
        key = jax.random.fold_in(_key(state), jax.lax.axis_index("devices"))
        value_and_gradient = jax.value_and_grad(_checked_loss(loss), has_aux=True)
        (total, (count, metrics)), gradient = value_and_gradient(state.params, batch, key)
        # Divided after summing over devices, because their shards of a batch may have different numbers of tokens.
        total, count, metrics, gradient = jax.lax.psum((total, count, metrics, gradient), "devices")
        gradient = _mean_gradient(gradient, count)
        params, moments = _updated(state, optimizer, gradient)
        metrics = {**metrics, "loss_sum": total, "count": count, "gradient_norm": optax.tree.norm(gradient)}
        return TrainState(state.step + 1, params, moments, None, state.key), metrics

    return step


def _key(state: TrainState) -> jax.Array:
    """Returns the key of the next step."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)


def _updated(state: TrainState, optimizer: optax.GradientTransformation, gradient: Tree) -> tuple[Tree, Tree]:
    """Returns the parameters and the moments after an update by the mean gradient."""
    with jax.numpy_dtype_promotion("standard"):  # optax mixes float32 with its integer step count
        updates, moments = optimizer.update(gradient, state.optimizer, state.params)
        return optax.apply_updates(state.params, updates), moments


def _next_average(state: TrainState, params: Tree, ema_decay: float, finite: jax.Array | None) -> Tree | None:
    """Returns the moving average with new parameters, or the old one if they are not `finite`; None without one."""
    if (state.ema_params is None) != (ema_decay == 0):
        has = "no moving average" if state.ema_params is None else "a moving average"
        raise ValueError(
            f"the state has {has}, but ema_decay is {ema_decay}: create the state with ema={ema_decay > 0}"
        )
    if state.ema_params is None:
        return None
    # In early steps, a slow average would consist mostly of the initial values.
    updates_done = state.step.astype(jnp.float32)
    decay = jnp.minimum(ema_decay, (1 + updates_done) / (10 + updates_done))
    if finite is not None:
        decay = jnp.where(finite, decay, 1.0)
    return jax.tree.map(lambda a, p: a + (1 - decay) * (widened(p) - a), state.ema_params, params)


def _updates_done(state: TrainState) -> jax.Array:
    """Returns the optax state's count of updates, which excludes skipped ones; without one, the count of steps."""
    counts = optax.tree.get_all_with_path(state.optimizer, "count")
    return counts[-1][1] if counts else state.step


def _checked_loss(loss: Loss) -> Callable[[Tree, Tree, jax.Array], tuple[jax.Array, tuple[jax.Array, Metrics]]]:
    """Returns a loss whose result is checked during tracing: the sum and, as auxiliary data, (count, metrics)."""

    def checked(params: Tree, batch: Tree, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Metrics]]:
        parts: Tree = loss(params, batch, key)
        result = parts
        if isinstance(result, tuple | list) and len(result) == 2:
            parts = [*result, {}]
        fits = isinstance(parts, tuple | list) and len(parts) == 3 and isinstance(parts[2], Mapping)
        if not fits or not all(jax.tree_util.all_leaves([x]) and jnp.shape(x) == () for x in parts[:2]):
            got = jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", result)
            raise ValueError(
                "loss(params, batch, key) must return (sum, count, metrics) or (sum, count): the sum over the batch "
                f"and the number of what was summed, both scalars, and a dict of metrics; got {got}"
            )
        if taken := sorted(OWN_METRICS & parts[2].keys()):
            raise ValueError(f"the step itself reports {', '.join(taken)}; give the loss's metric another name")
        return parts[0], (jnp.asarray(parts[1]).astype(jnp.float32), dict(parts[2]))

    return checked


def _mean_gradient(gradient: Tree, count: jax.Array) -> Tree:
    """Divides the gradient of a sum by its count, or by 1 if the count is 0, as in a batch of padding, in float32."""
    return jax.tree.map(lambda g: widened(g) / jnp.where(count > 0, count, 1.0), gradient)


def _summed_gradient(loss: Loss, params: Tree, batch: Tree, key: jax.Array, num_parts: int):
    """Returns the sum, the count, the metrics and the gradient of the sum over the whole batch."""
    gradient = jax.value_and_grad(_checked_loss(loss), has_aux=True)
    if num_parts == 1:
        (total, (count, metrics)), grads = gradient(params, batch, key)
        return total, count, metrics, grads
    sizes = {x.shape[0] if x.ndim else 1 for x in jax.tree.leaves(batch)}
    if any(size % num_parts for size in sizes):
        raise ConfigError(f"num_microbatches={num_parts} does not divide the batch's first dimension {sorted(sizes)}")
    # Part i takes every num_parts-th row from row i on, so that no row moves to another device of a mesh.
    parts = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, num_parts, *x.shape[1:]), 1, 0), batch)
    keys = jax.random.split(key, num_parts)
    first = jax.tree.map(lambda x: x[0], (parts, keys))
    of_part = lambda *part: jax.tree.map(widened, gradient(params, *part))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_part, *first))

    def add(sums, part):
        return jax.tree.map(jnp.add, sums, of_part(*part)), None

    ((total, (count, metrics)), grads), _ = jax.lax.scan(add, zeros, (parts, keys))
    return total, count, metrics, grads


class OutOfMemoryError(JaxformerError):
    """A compiled step needs more memory than is available; without this error, the system would kill the process."""

    exit_code = 2


class Programs:
    """A jitted step that is compiled ahead of time at the first batch of each structure, with its shapes and dtypes.

    A compilation begins after earlier steps have ended: a step that ran during it would seem to take no time.

    Args:
      step: the jitted step.
      timer: the timer of the run; the time of compilation counts as "compiling".
      memory: the bytes of main memory, which CPU devices share; it is not used for accelerators, which check their own.

    Raises:
      OutOfMemoryError: when called, a program needs more than `memory`.
    """

    def __init__(self, step: jax.stages.Wrapped, timer: PhaseTimer, *, memory: float | None = None):
        self._step, self._timer = step, timer
        self._memory = hardware.host_memory() if memory is None else memory
        self._programs = dict[tuple[Hashable, ...], jax.stages.Compiled]()

    def __call__(self, state: TrainState, batch: Tree) -> tuple[TrainState, Metrics]:
        """Returns the next state and the metrics of the step."""
        leaves, structure = jax.tree.flatten(batch)
        kind = structure, *map(jax.typeof, leaves)
        if kind not in self._programs:
            jax.block_until_ready(state)
            previous = self._timer.at("compiling")
            self._programs[kind] = self._compiled(state, batch)
            self._timer.at(previous)
        return self._programs[kind](state, batch)

    def __len__(self) -> int:
        """The number of compiled programs."""
        return len(self._programs)

    def _compiled(self, state: TrainState, batch: Tree) -> jax.stages.Compiled:
        program = self._step.lower(state, batch).compile()
        devices, memory = jax.local_devices(), program.memory_analysis()
        if devices[0].platform != "cpu" or memory is None:  # a program from the cache may lack this analysis
            return program
        sizes = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
        needed = (sizes - memory.alias_size_in_bytes) * len(state.step.sharding.device_set & set(devices))
        if needed > self._memory:
            shape = " x ".join(map(str, max(map(jnp.shape, jax.tree.leaves(batch)))))
            raise OutOfMemoryError(
                f"out of memory: a step on a batch of {shape} needs {needed / 1e9:,.1f} GB, but there are "
                f"{self._memory / 1e9:,.1f} GB; choose a smaller batch or model"
            )
        return program
