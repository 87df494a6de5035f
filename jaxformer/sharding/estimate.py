"""A roofline of one training step: what the data sheet's rates allow at best.  An estimate, never a measurement."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import numpy as np

from jaxformer.sharding.hlo import Collective
from jaxformer.sharding.topology import Topology


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds that a step spends at least on each of three things, were it to do nothing else."""

    compute: float
    """Matrix products at the chip's peak."""
    memory: float
    """What it must read and write once."""
    network: float
    """All collectives, each at the rate of the links that it needs."""

    @property
    def overlapped(self) -> float:
        """Seconds of a step in which all three go on at once."""
        return max(self.compute, self.memory, self.network)

    @property
    def serial(self) -> float:
        """Seconds of a step in which the network waits for the device, and it for the network."""
        return max(self.compute, self.memory) + self.network

    @property
    def bound(self) -> str:
        """Which of the three is longest."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


def roofline(
    topology: Topology, mesh: Mapping[str, int], *, flops: float, touched: float, found: Iterable[Collective]
) -> Roofline:
    """The roofline of a device's share of a step.

    Args:
      mesh: ``mesh.shape``, the axes with their sizes in order.
      flops: operations of one device.
      touched: bytes that one device reads or writes at least.
      found: the collectives of the program.

    >>> from jaxformer.sharding.topology import parse
    >>> reduced = Collective("all-reduce", 2 * 10**9, 2 * 10**9, 4, ("fsdp",), 1, "")
    >>> sheet = roofline(parse("v5p:2x2x1"), {"fsdp": 4}, flops=459e10, touched=2765e6, found=[reduced])
    >>> sheet.compute, sheet.memory, round(sheet.network, 6), sheet.bound       # 3 GB at 200 GB/s
    (0.01, 0.001, 0.015, 'network')
    """
    network = sum(one.count * one.wire / _rate(topology, mesh, one) for one in found)
    return Roofline(flops / topology.chip.flops, touched / topology.chip.memory_rate, network)


def _rate(topology: Topology, mesh: Mapping[str, int], one: Collective) -> float:
    """Bytes/s at which a device sends in a collective.

    A torus wraps around only where it is long enough, and is then used both ways.  What leaves a slice, or a host of
    GPUs, is shared out over all of the devices there that take part, each with an adapter of its own; where each
    sends something else to each, nothing can be shared.
    """
    size, chip = math.prod(mesh.values()), topology.chip
    joined = topology.joined or size // mesh.get("slice", 1)
    places = np.arange(size).reshape(tuple(mesh.values()))
    ring = places[tuple(slice(None) if name in one.axes else 0 for name in mesh)].reshape(-1)
    together = int(np.count_nonzero(ring < joined))
    if together == ring.size:
        return chip.link_rate
    shared = together if one.kind in ("all-gather", "all-reduce", "reduce-scatter") else 1
    return min(chip.link_rate, shared * chip.network_rate)
