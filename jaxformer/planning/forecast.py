"""What a training step will need and send on a machine that is not here: the step that is trained, compiled for it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import jax

from jaxformer import sharding
from jaxformer.data.batch import Shape
from jaxformer.data.batch_plan import num_rows
from jaxformer.models.costs import (
    encoder_decoder_computed_flops,
    encoder_decoder_parameters,
    encoder_decoder_training_flops,
)
from jaxformer.models.encoder_decoder import EncoderDecoderConfig
from jaxformer.planning import topology
from jaxformer.planning.hlo import Collective, collectives
from jaxformer.planning.roofline import Roofline, roofline
from jaxformer.sharding.mesh import num_slices
from jaxformer.tasks.translation_config import TranslationConfig
from jaxformer.tasks.translation_model import Model, make_model


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    parameters: int
    optimizer: int
    """Moments, and the moving average where one is kept."""
    peak: int
    """At the worst moment, everything counted; of a program that does not fit, as far as the compiler says."""
    available: int
    """What JAX will take of it."""

    @property
    def temporaries(self) -> int:
        """Activations, gradients, what is gathered for a while, and the program itself."""
        return self.peak - self.parameters - self.optimizer

    @property
    def fits(self) -> bool:
        """Whether the peak is within what there is."""
        return self.peak <= self.available


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What the compiler says of one training step, and an estimate of its time."""

    topology: str
    mesh: dict[str, int]
    batch: Shape
    parameters: int
    flops: float
    """Of the model, a step, all devices; without what the backward pass computes again."""
    computed: float
    """What the devices compute for it, by `encoder_decoder_computed_flops`."""
    memory: Memory
    collectives: tuple[Collective, ...]
    """Those of one device; none are known of a program that does not fit."""
    estimate: Roofline | None

    @property
    def tokens(self) -> int:
        """Padded target tokens of a step."""
        return self.batch[0] * self.batch[2]

    def utilization(self, seconds: float) -> float:
        """The share of the machine's bfloat16 peak that a step of so many seconds puts to use for the model (MFU)."""
        return self.flops / (seconds * math.prod(self.mesh.values()) * topology.parse(self.topology).chip.flops)


def forecast(config: TranslationConfig, name: str, *, shape: Shape | None = None) -> Forecast:
    """Compiles the training step of a configuration, on its mesh, for a topology.

    Args:
      name: such as "v5p:4x4x8"; a mesh that begins ``slice=2`` has two of them.  Or "h100:16x8", all hosts counted.
      shape: rows, source and target length of the batch; by default those of the longest sentences.

    Raises:
      ValueError: an unknown topology, a mesh that does not fit it or the model, or no compiler for it.
    """
    machine = topology.parse(name)
    available = machine.available
    devices = topology.devices(name, slices=num_slices(config.mesh))
    placement = sharding.Placement(sharding.mesh(config.mesh, devices))
    model = make_model(config, config.model.target_vocab_size or config.data.vocab_size, placement)
    length = config.data.max_length + -config.data.max_length % config.data.length_multiple
    lowered, shape = model.lower(shape or (num_rows(config.data.tokens_per_batch, length), length, length))
    state, mesh = _state_bytes(model), dict(placement.mesh.shape)
    program, peak = _compiled(lowered, sum(state), devices[0].platform)
    if program is None:
        peak = max(peak, available + 1)  # the compiler keeps some for itself, and has refused
    found = None if program is None else collectives(program.as_text(), mesh)
    return concluded(model.net.config, name, mesh, shape, Memory(*state, peak, available), found)


def concluded(
    network: EncoderDecoderConfig,
    name: str,
    mesh: dict[str, int],
    shape: Shape,
    memory: Memory,
    found: Sequence[Collective] | None,
) -> Forecast:
    """The forecast that follows from a program's memory and collectives; these are None where it does not fit."""
    size, estimate = encoder_decoder_parameters(network), None
    flops, computed = encoder_decoder_training_flops(network, *shape), encoder_decoder_computed_flops(network, *shape)
    if found is not None:
        estimate = roofline(
            topology.parse(name),
            mesh,
            flops=computed / math.prod(mesh.values()),
            touched=2 * memory.peak,  # whatever lies in memory at the worst moment was written once, and is read once
            found=found,
            dtype=network.compute_dtype,
        )
    return Forecast(name, mesh, shape, size, flops, computed, memory, tuple(found or ()), estimate)


def _compiled(lowered: jax.stages.Lowered, state: int, platform: str) -> tuple[jax.stages.Compiled | None, int]:
    """The program and the peak of its memory; no program where it does not fit beside a state of so many bytes.

    The compiler for TPUs lets temporaries overlap, and fits their peak into the memory; their sum may be twice that.
    Elsewhere all of them are one buffer, which a CPU's peak leaves out.
    """
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        size = r"([\d.]+)([KMGT])"
        used = re.search(rf"Used {size} of [\d.]+[KMGT] hbm", str(error))
        more = re.search(rf"required for HLO temporaries \({size}\) exceeds available HBM", str(error))
        said = used or more
        if "RESOURCE_EXHAUSTED" not in str(error) or not said:
            raise
        needed = int(float(said[1]) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[said[2]])
        return None, needed if used else needed + state
    about = program.memory_analysis()
    peak = about.peak_memory_in_bytes
    if platform != "tpu":
        held = about.argument_size_in_bytes + about.output_size_in_bytes - about.alias_size_in_bytes
        peak = max(peak, held + about.temp_size_in_bytes)
    return program, peak + about.generated_code_size_in_bytes


def _state_bytes(model: Model) -> tuple[int, int]:
    """What a device holds of the parameters, and of the rest of the state."""
    held = lambda tree: sum(_held(leaf) for leaf in jax.tree.leaves(tree))
    state = model.abstract_state()
    return held(state.params), held((state.optimizer, state.ema_params))


def _held(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def remedies(config: TranslationConfig, found: Forecast, *, shape: Shape | None = None) -> list[str]:
    """What would make a step fit, with the arithmetic of each: `fsdp` shrinks the state, a smaller batch the rest.

    Args:
      shape: the one that `forecast` was given; without one the batch follows from the token budget.
    """
    memory, said, gib = found.memory, [], 2**30
    state = memory.parameters + memory.optimizer
    if not config.model.remat:
        said.append("--model.remat True: blocks are computed again in the backward pass; up to a third more arithmetic")
    before, length = config.train.accumulate, found.batch[2]
    wanted = shape[0] if shape else num_rows(config.data.tokens_per_batch, length)
    ways = math.prod(found.mesh.get(axis, 1) for axis in sharding.RULES["batch"])
    rows = found.batch[0] // (ways * before)  # that a device holds of one part
    needed = lambda fewer: state + memory.temporaries * fewer / rows
    fewer = next((fewer for fewer in range(rows - 1, 0, -1) if needed(fewer) <= memory.available), 0)
    if fewer:
        parts = -(-wanted // (ways * fewer))
        fewer = -(-wanted // (ways * parts))  # of parts that are all alike
        left = f"about {needed(fewer) / gib:.1f} GiB if all else shrinks so"
        said.append(f"--train.accumulate {parts}: the batch in {parts} parts, {left}")
        smaller = ways * before * fewer
        if shape:
            said.append(f"--batch {smaller}x{length}: a smaller batch, {left}")
        elif smaller >= num_rows(0, length):  # no training without so many
            said.append(f"--data.tokens_per_batch {smaller * length}: a smaller batch, {left}")
    if not fewer or state > memory.available / 4:
        fsdp = found.mesh.get("fsdp", 1)
        said.append(
            f"fsdp={2 * fsdp} instead of {fsdp} in the mesh: half of the state's {state / gib:.1f} GiB a device"
        )
    return said
