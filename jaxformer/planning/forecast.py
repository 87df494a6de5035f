"""A forecast of one training step on target hardware: the step that is trained, compiled ahead of time for it.

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
from jaxformer.planning import topology
from jaxformer.planning.hlo import Collective, collectives
from jaxformer.planning.roofline import Roofline, roofline
from jaxformer.training.state import TrainState

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Costs:
    """The size of one training step of a task; a task computes it without any device."""

    batch: tuple[int, ...]
    """The shape of the padded batch: its rows, then the lengths that the task has."""
    description: str
    """The batch in words, such as "512 x 256 source and 512 x 256 target tokens"."""
    tokens: int
    """Tokens of the batch that throughput counts, padding included."""
    parameters: int
    """The number of parameters."""
    flops: float
    """Floating-point operations of the model in a step, all devices together."""
    computed_flops: float
    """The same with those that the backward pass computes again."""
    compute_dtype: str
    """The type of the matrix products' operands, "bfloat16" or "float32"."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One training step of a task, lowered for the devices of a mesh, which need not be here."""

    lowered: jax.stages.Lowered
    """The training step, lowered for the batch of `costs`."""
    state: TrainState
    """The abstract state of the step: ``jax.ShapeDtypeStruct`` with shardings."""
    costs: Costs


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    parameters: int
    optimizer: int
    """Moments, and the moving average where one is kept."""
    peak: int
    """Everything at the worst moment; of a program that does not fit, as far as the compiler says."""
    available: int
    """The part of the device's memory that JAX will take."""

    @property
    def temporaries(self) -> int:
        """Activations, gradients, arrays that are gathered for a while, and the program itself."""
        return self.peak - self.parameters - self.optimizer

    @property
    def fits(self) -> bool:
        """True if the peak is within the available memory."""
        return self.peak <= self.available


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The compiler's figures of one training step, and an estimate of its time."""

    topology: str
    mesh: dict[str, int]
    batch: tuple[int, ...]
    description: str
    tokens: int
    parameters: int
    flops: float
    """Those of the model in a step, all devices together; without those that the backward pass computes again."""
    computed: float
    """The operations that the devices compute for it."""
    memory: Memory
    collectives: tuple[Collective, ...]
    """Those of one device; empty for a program that does not fit, whose collectives are unknown."""
    estimate: Roofline | None

    def utilization(self, seconds: float) -> float:
        """Returns the share of the machine's bfloat16 peak that the model uses in a step of this length (MFU)."""
        peak = topology.parse(self.topology).chip.bfloat16_flops
        return self.flops / (seconds * math.prod(self.mesh.values()) * peak)


def forecast(workload: Workload, name: str, mesh: Mesh) -> Forecast:
    """Compiles a training step for a topology.

    Args:
      workload: lowered for the devices of `mesh`.
      name: the topology, such as "v5p:4x4x8"; a mesh that begins ``slice=2`` has two of them. Of GPUs all hosts are
        counted, such as "h100:16x8".
      mesh: that of the workload, from `topology.mesh`.

    Raises:
      ConfigError: an unknown topology.
    """
    available = topology.parse(name).available
    held = _held(workload.state.params), _held((workload.state.optimizer, workload.state.ema_params))
    program, peak = _compiled(workload.lowered, sum(held), mesh.devices.flat[0].platform)
    sizes = dict(mesh.shape)
    if program is None:
        peak = max(peak, available + 1)  # the compiler keeps some memory for itself, and has refused
    sent = None if program is None else collectives(program.as_text() or "", sizes)
    return conclude(workload.costs, name, sizes, Memory(*held, peak, available), sent)


def conclude(
    costs: Costs, name: str, mesh: dict[str, int], memory: Memory, sent: Sequence[Collective] | None
) -> Forecast:
    """Returns the forecast that follows from a program's memory and collectives.

    Args:
      name: the topology.
      mesh: the sizes of the mesh's axes, in order.
      sent: the collectives; None for a program that does not fit.
    """
    estimate = None
    if sent is not None:
        estimate = roofline(
            topology.parse(name),
            mesh,
            flops=costs.computed_flops / math.prod(mesh.values()),
            touched=2 * memory.peak,  # everything in memory at the worst moment was written once, and is read once
            collectives=sent,
            dtype=costs.compute_dtype,
        )
    return Forecast(
        name,
        mesh,
        costs.batch,
        costs.description,
        costs.tokens,
        costs.parameters,
        costs.flops,
        costs.computed_flops,
        memory,
        tuple(sent or ()),
        estimate,
    )


def _compiled(lowered: jax.stages.Lowered, state: int, platform: str) -> tuple[jax.stages.Compiled | None, int]:
    """Returns the program and the peak of its memory; None where it does not fit beside the state, given in bytes.

    The compiler for TPUs lets temporaries overlap, and fits their peak into the memory; their sum may be twice that.
    Elsewhere all of them are one buffer, which a CPU's peak leaves out.
    """
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        size = r"([\d.]+)([KMGT])"
        used = re.search(rf"Used {size} of [\d.]+[KMGT] hbm", str(error))
        more = re.search(rf"required for HLO temporaries \({size}\) exceeds available HBM", str(error))
        match = used or more
        if "RESOURCE_EXHAUSTED" not in str(error) or not match:
            raise
        needed = int(float(match[1]) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[match[2]])
        return None, needed if used else needed + state
    analysis = program.memory_analysis()
    if analysis is None:
        raise NotImplementedError(f"the compiler for {platform} does not say how much memory a program takes")
    peak = analysis.peak_memory_in_bytes
    if platform != "tpu":
        kept = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        peak = max(peak, kept + analysis.temp_size_in_bytes)
    return program, peak + analysis.generated_code_size_in_bytes


def _held(tree: object) -> int:
    """Returns the bytes that one device holds of a tree of shapes with shardings."""
    shards = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(tree)]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shards)


def remedies(
    forecast: Forecast, *, num_rows: int, accumulate: int, remat: bool, smaller_batch: Callable[[int], str]
) -> list[str]:
    """Returns what would make a step fit, with the arithmetic of each: `fsdp` shrinks the state, fewer rows the rest.

    Args:
      num_rows: rows of the batch before they are filled up for the mesh.
      accumulate: parts into which the batch is cut now.
      remat: True if blocks are computed again in the backward pass already, or cannot be.
      smaller_batch: function from a number of rows to the task's option for a batch of them, such as
        ``"--data.tokens_per_batch 1152"``; an empty text where training would refuse it.
    """
    memory, hints = forecast.memory, list[str]()
    state = memory.parameters + memory.optimizer
    if not remat:
        hints.append(
            "--model.remat True: blocks are computed again in the backward pass; up to a third more arithmetic"
        )
    ways = math.prod(forecast.mesh.get(axis, 1) for axis in sharding.RULES["batch"])
    held = forecast.batch[0] // (ways * accumulate)  # rows of one part on a device
    needed = lambda rows: state + memory.temporaries * rows / held
    fewer = next((rows for rows in range(held - 1, 0, -1) if needed(rows) <= memory.available), 0)
    if fewer:
        parts = -(-num_rows // (ways * fewer))
        fewer = -(-num_rows // (ways * parts))  # parts of equal size
        result = f"about {needed(fewer) / GIB:.1f} GiB if everything else shrinks in proportion"
        hints.append(f"--train.accumulate {parts}: the batch in {parts} parts, {result}")
        if option := smaller_batch(ways * accumulate * fewer):
            hints.append(f"{option}: a smaller batch, {result}")
    if not fewer or state > memory.available / 4:
        fsdp = forecast.mesh.get("fsdp", 1)
        hints.append(
            f"fsdp={2 * fsdp} instead of {fsdp} in the mesh: half of the state's {state / GIB:.1f} GiB a device"
        )
    return hints
