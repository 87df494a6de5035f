"""What a training step will need and send on a machine that is not here: the step that is trained, compiled for it."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import jax

from jaxformer import sharding
from jaxformer.data.batch import Shape
from jaxformer.data.plan import num_rows
from jaxformer.models.costs import encoder_decoder_parameters, encoder_decoder_training_flops
from jaxformer.sharding import topology
from jaxformer.sharding.estimate import Roofline, roofline
from jaxformer.sharding.hlo import Collective, collectives
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
    """Of the model, a step, all devices; without what `remat` computes again."""
    memory: Memory
    collectives: tuple[Collective, ...]
    """Those of one device; none are known of a program that does not fit."""
    estimate: Roofline | None

    @property
    def tokens(self) -> int:
        """Padded target tokens of a step."""
        return self.batch[0] * self.batch[2]

    def utilisation(self, seconds: float) -> float:
        """The share of the machine's matrix peak that a step of so many seconds uses."""
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
    devices = topology.devices(name, slices=num_slices(config.mesh))
    placement = sharding.Placement(sharding.mesh(config.mesh, devices))
    model = make_model(config, config.model.target_vocab_size or config.data.vocab_size, placement)
    length = config.data.max_length
    lowered, shape = model.lower(shape or (num_rows(config.data.token_budget, length), length, length))
    network, mesh = model.net.config, dict(placement.mesh.shape)
    flops = encoder_decoder_training_flops(network, *shape)
    state = _state_bytes(model)
    program, peak = _compiled(lowered, sum(state))
    if program is None:
        peak = max(peak, machine.available + 1)  # the compiler keeps some for itself, and has refused
    memory = Memory(*state, peak, machine.available)
    found, estimate = [], None
    if program is not None:
        found = collectives(program.as_text(), mesh)
        # Whatever lies in memory at the worst moment was written once, and is read once.
        estimate = roofline(machine, mesh, flops=flops / placement.mesh.size, touched=2 * peak, found=found)
    size = encoder_decoder_parameters(network)
    return Forecast(name, mesh, shape, size, flops, memory, tuple(found), estimate)


def _compiled(lowered: jax.stages.Lowered, state: int) -> tuple[jax.stages.Compiled | None, int]:
    """The program and the peak of its memory; no program where it does not fit beside a state of so many bytes."""
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
    return program, about.peak_memory_in_bytes + about.generated_code_size_in_bytes


def _state_bytes(model: Model) -> tuple[int, int]:
    """What a device holds of the parameters, and of the rest of the state."""
    held = lambda tree: sum(_held(leaf) for leaf in jax.tree.leaves(tree))
    state = model.abstract_state()
    return held(state.params), held((state.optimizer, state.average))


def _held(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def remedies(config: TranslationConfig, found: Forecast) -> list[str]:
    """What would make a step fit, with the arithmetic of each: `fsdp` shrinks the state, a smaller batch the rest."""
    memory, said, gib = found.memory, [], 2**30
    state = memory.parameters + memory.optimizer
    if not config.model.remat:
        said.append("--model.remat True: blocks are computed again in the backward pass; a third more arithmetic")
    parts = config.train.accumulate
    while state < memory.available and state + memory.temporaries * config.train.accumulate / parts > memory.available:
        parts *= 2
    if state < memory.available:
        left = (state + memory.temporaries * config.train.accumulate / parts) / gib
        said.append(
            f"--train.accumulate {parts}: the batch in {parts} parts, about {left:.1f} GiB if all else shrinks so"
        )
        said.append(
            f"--data.token_budget {config.data.token_budget * config.train.accumulate // parts}: a smaller batch"
        )
    ways = found.mesh.get("fsdp", 1)
    if state > memory.available / 4:
        said.append(
            f"fsdp={2 * ways} instead of {ways} in the mesh: half of the state's {state / gib:.1f} GiB a device"
        )
    return said
