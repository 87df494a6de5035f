"""A forecast of a training step on target hardware: the same step as in training, compiled ahead of time.

A task describes its step as a `Workload`; nothing here knows the task.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh

from jaxformer import sharding
from jaxformer.hardware import GIB
from jaxformer.planning import topology
from jaxformer.planning.hlo import Collective, collectives
from jaxformer.planning.roofline import Roofline, roofline
from jaxformer.reprs import as_html, brief
from jaxformer.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of one training step of a task, computed without a device."""

    batch: tuple[int, ...]
    """The shape of the padded batch: its rows, then the lengths that the task has."""
    description: str
    """The batch in words, such as "512 x 256 source and 512 x 256 target tokens"."""
    tokens: int
    """The number of loss terms in the batch, padding included, which throughput counts."""
    parameters: int
    """The number of parameters."""
    flops: float
    """Floating-point operations of the model in a step, all devices together."""
    computed_flops: float
    """The operations including recomputation in the backward pass."""
    compute_dtype: str
    """The type of the matrix products' operands, "bfloat16" or "float32"."""
    unit: str = "tokens"
    """The plural name of the loss terms, such as "tokens"."""
    has_frozen: bool = False
    """True if parameters are frozen: a step then leaves out some of the operations, which are counted all the same."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One training step of a task, lowered for the devices of a mesh, which need not exist on this machine."""

    lowered: jax.stages.Lowered
    """The training step, lowered for the batch of `costs`."""
    state: TrainState
    """The abstract state of the step: ``jax.ShapeDtypeStruct`` with shardings."""
    costs: Costs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device; subclasses say what it holds before a program runs."""

    peak: int
    """The peak of all memory in use; for a program that does not fit, the compiler's estimate."""
    available: int
    """The part of the device's memory that JAX will take."""

    @property
    def held(self) -> tuple[int, ...]:
        """The bytes of the parts that the device holds before."""
        raise NotImplementedError

    @property
    def temporaries(self) -> int:
        """Activations, gradients, gathered arrays, outputs that are no donated arguments, and the program itself."""
        return self.peak - sum(self.held)

    @property
    def fits(self) -> bool:
        """True if the peak is within the available memory."""
        return self.peak <= self.available


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceMemory(Memory):
    """Bytes of one device that holds a training state."""

    parameters: int
    optimizer: int
    """Moments, and the moving average if there is one."""

    @property
    def held(self) -> tuple[int, ...]:
        return self.parameters, self.optimizer


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Compiled:
    """The compiler's analysis of a program, and an estimate of its time."""

    topology: str
    mesh: dict[str, int]
    memory: Memory
    collectives: tuple[Collective, ...] = dataclasses.field(repr=False)
    """The collectives of one device; empty if unknown."""
    estimate: Roofline | None
    """None if the program does not fit, or its collectives are unknown."""

    __repr__ = brief
    _repr_html_ = as_html

    @property
    def uncounted_loops(self) -> list[str]:
        """The loops that count as one iteration, because their number of iterations depends on data."""
        return sorted({loop for collective in self.collectives for loop in collective.uncounted_loops})


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Forecast(Compiled, Costs):
    """The costs of one training step, the compiler's analysis of it, and an estimate of its time.

    If parameters are frozen, operations and compute time are upper limits, because they are of a full step.
    """

    memory: DeviceMemory
    collectives_error: str = ""
    """The reason why the collectives of a program that fits could not be read from its text."""

    def utilization(self, seconds: float) -> float:
        """Returns the model FLOP utilization (MFU) of a step of this duration, relative to the bfloat16 peak."""
        peak = topology.parse(self.topology).chip.bfloat16_flops
        return self.flops / (seconds * math.prod(self.mesh.values()) * peak)


def forecast(workload: Workload, name: str, mesh: Mesh) -> Forecast:
    """Compiles a training step for a topology.

    Args:
      workload: lowered for the devices of `mesh`.
      name: the topology, such as "v5p:4x4x8"; a mesh that begins with ``slice=2`` has two such slices. A topology of
        GPUs includes all hosts, such as "h100:16x8".
      mesh: the mesh of the workload, from `topology.mesh`.
    """
    parameters = device_bytes(workload.state.params)
    optimizer = device_bytes((workload.state.optimizer, workload.state.ema_params))
    peak, sent, problem = analyzed(workload.lowered, parameters + optimizer, name, mesh)
    available = topology.parse(name).available
    memory = DeviceMemory(parameters=parameters, optimizer=optimizer, peak=peak, available=available)
    return make_forecast(workload.costs, name, dict(mesh.shape), memory, sent, problem)


def make_forecast(
    costs: Costs,
    name: str,
    mesh: dict[str, int],
    memory: DeviceMemory,
    sent: Sequence[Collective] | None,
    problem: str = "",
) -> Forecast:
    """Returns the forecast that follows from a program's memory and collectives."""
    estimate = None
    if sent is not None:
        estimate = roofline(
            topology.parse(name),
            mesh,
            flops=costs.computed_flops / math.prod(mesh.values()),
            touched=2 * memory.peak,  # all memory in use at the peak was written once, and is read once
            collectives=sent,
            dtype=costs.compute_dtype,
        )
    return Forecast(
        **vars(costs),
        topology=name,
        mesh=mesh,
        memory=memory,
        collectives=tuple(sent or ()),
        estimate=estimate,
        collectives_error=problem,
    )


def analyzed(lowered: jax.stages.Lowered, held: int, name: str, mesh: Mesh) -> tuple[int, list[Collective] | None, str]:
    """Compiles a program; returns the peak of its memory beside `held` bytes, and its collectives.

    The collectives are None if they are unknown; if the program fits, a text has the reason.
    """
    program, peak = compiled(lowered, held, mesh.devices.flat[0].platform)
    if program is None:  # the compiler refused it, because it keeps some memory for itself
        return max(peak, topology.parse(name).available + 1), None, ""
    try:
        return peak, collectives(program.as_text() or "", dict(mesh.shape)), ""
    except ValueError as error:
        return peak, None, str(error)  # the memory is still known


def compiled(lowered: jax.stages.Lowered, state: int, platform: str) -> tuple[jax.stages.Compiled | None, int]:
    """Returns the program, or None if it does not fit beside `state` bytes of state, and the peak of its memory.

    The compiler for TPUs lets temporaries overlap, and fits their peak into the memory; their sum may be twice that.
    On other platforms they are one buffer, which the peak of a CPU does not include.
    """
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        size = r"([\d.]+)([KMGT])"
        used = re.search(rf"Used {size} of [\d.]+[KMGT] hbm", str(error))
        temporaries = re.search(rf"required for HLO temporaries \({size}\) exceeds available HBM", str(error))
        match = used or temporaries
        if "RESOURCE_EXHAUSTED" not in str(error) or not match:
            raise
        needed = int(float(match[1]) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[match[2]])
        return None, needed + state * (not used)
    analysis = program.memory_analysis()
    if analysis is None:
        raise NotImplementedError(f"the compiler for {platform} does not report the memory of a program")
    peak = analysis.peak_memory_in_bytes
    if platform != "tpu":
        kept = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        peak = max(peak, kept + analysis.temp_size_in_bytes)
    return program, peak + analysis.generated_code_size_in_bytes


def device_bytes(tree: object) -> int:
    """Returns the bytes that one device holds of a tree of shapes with shardings."""
    shards = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(tree)]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shards)


def remedies(
    forecast: Forecast, *, num_rows: int, num_microbatches: int, remat: bool, smaller_batch: Callable[[int], str]
) -> list[str]:
    """Returns changes that would make a step fit, with their arithmetic: `fsdp` shrinks the state, fewer rows the rest.

    Args:
      num_rows: the rows of the batch before padding for the mesh.
      num_microbatches: the current number of parts of the batch.
      remat: True if the backward pass recomputes blocks already, or cannot.
      smaller_batch: function from a number of rows to the task's option for a batch of them, such as
        ``"--data.tokens_per_batch 1152"``; an empty text if training would refuse it.
    """
    memory, hints = forecast.memory, list[str]()
    state = memory.parameters + memory.optimizer
    if not remat:
        hints.append(
            "--model.remat True: blocks are computed again in the backward pass; up to a third more arithmetic"
        )
    num_shards = math.prod(forecast.mesh.get(axis, 1) for axis in sharding.RULES["batch"])
    device_rows = forecast.batch[0] // (num_shards * num_microbatches)  # of one part
    needed = lambda rows: state + memory.temporaries * rows / device_rows
    fewer = next((rows for rows in range(device_rows - 1, 0, -1) if needed(rows) <= memory.available), 0)
    if fewer:
        parts = -(-num_rows // (num_shards * fewer))
        fewer = -(-num_rows // (num_shards * parts))  # parts of equal size
        result = f"about {needed(fewer) / GIB:.1f} GiB if everything else shrinks in proportion"
        hints.append(f"--train.num_microbatches {parts}: the batch in {parts} parts, {result}")
        if option := smaller_batch(num_shards * num_microbatches * fewer):
            hints.append(f"{option}: a smaller batch, {result}")
    one_row = memory.temporaries / max(1, device_rows)
    if state <= memory.available / 4 and one_row > memory.available:  # gradients are a small part of it
        hints.append(
            f"smaller rows, such as shorter ones: one alone takes about {one_row / GIB:.1f} GiB beside the state"
        )
    elif not fewer or state > memory.available / 4:
        fsdp = forecast.mesh.get("fsdp", 1)
        hints.append(
            f"fsdp={2 * fsdp} instead of {fsdp} in the mesh: half of the state's {state / GIB:.1f} GiB a device"
        )
    return hints
