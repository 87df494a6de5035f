"""Training steps compiled ahead of time (AOT), so that compilation time and memory are known."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp

from jaxformer import hardware
from jaxformer.errors import JaxformerError
from jaxformer.training.phase_timer import PhaseTimer
from jaxformer.training.state import TrainState, Tree
from jaxformer.training.step import Metrics


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
